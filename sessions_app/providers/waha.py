"""WhatsApp through WAHA (waha.devlike.pro), an unofficial gateway: always at the pace of a human.

Written against WAHA 2026.7.1. What its answers mean stands in waha_answers.py, its sessions in waha_sessions.py, what it tells by itself in
waha_webhooks.py.
"""

import mimetypes
import re
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from django.conf import settings

from sessions_app.providers import http
from sessions_app.providers.base import (
    Deadline,
    ErrorCode,
    Message,
    MessageType,
    Presence,
    Reach,
    Resolution,
    SendResult,
    SentMessage,
    Verification,
)
from sessions_app.providers.waha_answers import (
    CHAT,
    Likeness,
    Unreadable,
    best_of,
    client_id,
    json_object,
    likeness,
    plain,
    presence,
    raw_id,
    read_reach,
    read_send,
    vendor_words,
)
from sessions_app.providers.waha_sessions import WahaSessions
from sessions_app.providers.waha_webhooks import WahaWebhooks

# How far before and after the claim a message found by its text may lie: clocks differ by seconds, and a call is over long before this.
SEARCH_BEFORE = timedelta(seconds=60)
SEARCH_AFTER = timedelta(seconds=600)
SEARCH_LIMIT = 100
COURTESY_SHARE = 1 / 3  # of the time that is left, for seen and typing together

CALLS = {
    MessageType.TEXT: "sendText",
    MessageType.IMAGE: "sendImage",
    MessageType.VIDEO: "sendVideo",
    MessageType.AUDIO: "sendVoice",
    MessageType.DOCUMENT: "sendFile",
}
# What WAHA takes a file for whose address does not say; the two it documents, and what is true of most of the others.
USUAL = {
    MessageType.IMAGE: "image/jpeg",
    MessageType.VIDEO: "video/mp4",
    MessageType.AUDIO: "audio/ogg; codecs=opus",
    MessageType.DOCUMENT: "application/octet-stream",
}
_OFFICE = "application/vnd.openxmlformats-officedocument"
# What WhatsApp knows and Python's own table, which is the same on every machine, does not or has under another name.
_SUFFIXES = {
    ".ogg": USUAL[MessageType.AUDIO],
    ".oga": USUAL[MessageType.AUDIO],
    ".opus": USUAL[MessageType.AUDIO],
    ".m4a": "audio/mp4",
    ".webp": "image/webp",
    ".docx": f"{_OFFICE}.wordprocessingml.document",
    ".xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    ".pptx": f"{_OFFICE}.presentationml.presentation",
}
_TABLE = mimetypes.MimeTypes()
_MEDIA_URL = re.compile(r"https?://[^/?#\s]+(?P<path>[^?#\s]*)\S*")


class WahaProvider(WahaSessions, WahaWebhooks):
    key = "waha"
    label = "WhatsApp (WAHA)"
    address_kind = "whatsapp"
    message_types = frozenset(CALLS)
    takes = frozenset({"filename"})
    uncaptioned = frozenset({MessageType.AUDIO})
    can_verify = True
    absence_is_proof = False  # WAHA keeps what it sent in a store that a crash or an off switch can empty

    checks_numbers = True  # for sessions that were saved before they could choose

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        """With our own id for texts on the engines that take one; no engine takes one for media."""
        hidden = self._hidden(address, message)
        refusal = self._refusal_before_the_call(address, message)
        if refusal is not None:
            return refusal
        body = {"session": self.waha_session, "chatId": address, **self._content(message)}
        our_id = client_id(client_ref) if self._has_our_id(message) else ""
        if our_id:
            body["id"] = our_id
        if message.type is MessageType.TEXT:
            self._be_polite(address, deadline)
        try:
            response = http.post_json(self._url(CALLS[message.type]), body, headers=self._headers(), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            result = http.without_answer(error, "WAHA", hidden)
        else:
            result = read_send(response, hidden)
        # So that a receipt, which names nothing but the id, can settle what nobody knows.
        return replace(result, message_id=our_id) if result.code == ErrorCode.UNCONFIRMED else result

    def _has_our_id(self, message: Message) -> bool:
        return self.takes_client_id and message.type is MessageType.TEXT

    def _content(self, message: Message) -> dict[str, Any]:
        if message.type is MessageType.TEXT:
            return {
                "text": plain(message.text),
                "linkPreview": message.link_preview,
                "linkPreviewHighQuality": message.link_preview_high_quality,
            }
        caption = plain(message.caption) if message.caption.strip() else ""
        content: dict[str, Any] = {"file": _file(message) | {"url": self._as_waha_reaches(message.media_url)}}
        if message.type in {MessageType.VIDEO, MessageType.AUDIO}:
            content["convert"] = self._is_on("convert_media")
        if message.type is MessageType.VIDEO or (caption and message.type is not MessageType.AUDIO):
            content["caption"] = caption  # of a video always: WAHA has a text of its own for one that is left out
        return content

    def _as_waha_reaches(self, url: str) -> str:
        """A file that staff uploaded lies on our own site, which WAHA may know by another name, as for the webhook."""
        callback, ours = str(self.config.settings.get("callback_url") or ""), f"{settings.PUBLIC_URL}/files/"
        if not callback or not url.startswith(ours):
            return url
        site = (
            callback.partition("/api/webhooks/")[0]
            if "/api/webhooks/" in callback
            else "{0.scheme}://{0.netloc}".format(urlsplit(callback))
        )
        return f"{site}/files/{url.removeprefix(ours)}"

    def _be_polite(self, address: str, deadline: Deadline) -> None:
        """Seen and typing, where chosen. Whatever comes of it, the text goes; so it may not use up the time for that."""
        calls = ["sendSeen"] if self._is_on("show_seen") else []
        calls += ["startTyping", "stopTyping"] if self._is_on("show_typing") else []
        share = Deadline(timedelta(seconds=deadline.remaining * COURTESY_SHARE))
        body = {"session": self.waha_session, "chatId": address}
        for call in calls:
            try:
                http.post_json(self._url(call), body, headers=self._headers(), deadline=share)
            except (http.NotSent, http.NoAnswer):
                pass  # WAHA's engines break these now and then while sending works

    def _refusal_before_the_call(self, address: str, message: Message) -> SendResult | None:
        if message.type not in self.message_types:
            return SendResult.refused(ErrorCode.MISCONFIGURED, f"{self.label} does not send {message.type.value} messages.")
        problem = self.misconfiguration()
        if problem:
            return SendResult.refused(ErrorCode.MISCONFIGURED, problem)
        if not CHAT.fullmatch(address):  # WAHA would take a bare number for a person and status@broadcast for everybody
            return SendResult.refused(ErrorCode.INVALID_RECIPIENT, "Not a WhatsApp chat id.")
        if message.type is MessageType.TEXT and not message.text.strip():
            return SendResult.refused(ErrorCode.FATAL, "The text is empty.")
        if message.type is not MessageType.TEXT and not _MEDIA_URL.fullmatch(message.media_url):
            return SendResult.refused(ErrorCode.MISCONFIGURED, "The address of the media is missing or malformed. Enter it in the step.")
        return None

    # -- before the first message ----------------------------------------------------------------------------------------------

    def needs_resolving(self, address: str) -> bool:
        return address.endswith("@c.us") and self._is_on("check_numbers", default=self.checks_numbers)

    def resolve_address(self, address: str, deadline: Deadline) -> Resolution:
        if not address.endswith("@c.us") or not CHAT.fullmatch(address):
            return Resolution(Reach.UNKNOWN, detail="Only a person's number can be checked.")
        problem = self.misconfiguration()
        if problem:
            return Resolution(Reach.UNKNOWN, detail=problem, code=ErrorCode.DISCONNECTED)
        phone = address.partition("@")[0]
        hidden = [*self._secrets(), address, phone]
        query: dict[str, str | int] = {"phone": phone, "session": self.waha_session}
        try:
            response = http.get_json(self._url("contacts", "check-exists"), query=query, headers=self._headers(), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return Resolution(Reach.UNKNOWN, detail=http.scrub(f"WAHA could not be asked: {error}", hidden))
        return read_reach(response, hidden)

    # -- afterwards ------------------------------------------------------------------------------------------------------------

    def verify(self, sent: SentMessage, deadline: Deadline) -> Verification:
        """By the id WAHA answered, or our own where the engine took one; else by chat, time and text or caption, media without a caption
        by its kind.

        A message WhatsApp's server has not acknowledged (ack 0) is UNKNOWN and not PRESENT: it stands in WAHA's outbox, so it must not be
        sent again, but it has not arrived either. Asked a little later, it will say one or the other. Ack -1 is WhatsApp's refusal: ABSENT.
        """
        if self.misconfiguration() or not CHAT.fullmatch(sent.address):
            return Verification(Presence.UNKNOWN, detail=self.misconfiguration() or "Not a WhatsApp chat id.")
        known = sent.provider_message_id or (client_id(sent.client_ref) if self._has_our_id(sent.message) else "")
        hidden = self._hidden(sent.address, sent.message)
        try:
            return self._look_up(known, sent, deadline) if known else self._search(sent, deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return Verification(Presence.UNKNOWN, detail=http.scrub(f"WAHA could not be asked: {error}", hidden))
        except Unreadable as error:
            return Verification(Presence.UNKNOWN, detail=http.scrub(str(error), hidden))

    def _look_up(self, raw: str, sent: SentMessage, deadline: Deadline) -> Verification:
        if self.takes_client_id:  # "all" leaves the chat open, which may be stored as @lid or @c.us
            path = ("chats", "all", "messages", raw)
        else:
            path = ("chats", sent.address, "messages", f"true_{sent.address}_{raw}")
        response = http.get_json(
            self._url(self.waha_session, *path), query={"downloadMedia": "false"}, headers=self._headers(), deadline=deadline
        )
        if response.status == 404 and re.search(r"message\b.*\bnot found", vendor_words(response), re.IGNORECASE):
            return Verification(Presence.ABSENT, detail="WAHA does not know this message.")
        if response.status == 200 and response.body.strip() in (b"", b"null"):  # how WAHA writes "nothing"
            return Verification(Presence.ABSENT, detail="WAHA does not know this message.")
        found = json_object(response)
        if response.status != 200 or raw_id(found).upper() != raw.upper():
            raise Unreadable(response)
        return presence(found)

    def _search(self, sent: SentMessage, deadline: Deadline) -> Verification:
        query: dict[str, str | int] = {
            "limit": SEARCH_LIMIT,
            "sortOrder": "desc",
            "downloadMedia": "false",
            "filter.fromMe": "true",
            "filter.timestamp.gte": int((sent.claimed_at - SEARCH_BEFORE).timestamp()),
            "filter.timestamp.lte": int((sent.claimed_at + SEARCH_AFTER).timestamp()),
        }
        url = self._url(self.waha_session, "chats", sent.address, "messages")
        response = http.get_json(url, query=query, headers=self._headers(), deadline=deadline)
        try:
            messages = response.json()
        except ValueError:
            messages = None
        if response.status != 200 or not isinstance(messages, list):
            raise Unreadable(response)
        alike = [(likeness(found, sent.message, query), found) for found in messages]
        same = [presence(found) for how, found in alike if how is Likeness.SAME]
        if same:
            return best_of(same)
        if any(how is Likeness.PERHAPS for how, _ in alike):
            return Verification(Presence.UNKNOWN, detail="There is media without a caption at that time; WAHA does not say of which kind.")
        if len(messages) >= SEARCH_LIMIT:
            return Verification(Presence.UNKNOWN, detail="There are too many messages in this chat to be sure.")
        return Verification(Presence.ABSENT, detail="WAHA does not list this message in the chat at that time.")

    def _hidden(self, address: str, message: Message) -> list[str]:
        texts = [line for text in (message.text, message.caption) for line in (text, plain(text), *text.splitlines())]
        return [*self._secrets(), address, address.partition("@")[0], message.media_url, *texts]


def _file(message: Message) -> dict[str, str]:
    match = _MEDIA_URL.fullmatch(message.media_url)
    in_url = unquote(match["path"].rpartition("/")[2]) if match else ""
    mimetype = _mimetype(in_url, message.type) or _mimetype(message.filename, message.type) or USUAL[message.type]
    file = {"mimetype": mimetype, "url": message.media_url}
    if message.type is not MessageType.AUDIO:  # a voice message has no name
        file["filename"] = message.filename.strip() or in_url or f"{message.type.value.lower()}{_TABLE.guess_extension(mimetype) or ''}"
    return file


def _mimetype(name: str, type: MessageType) -> str:
    """What the suffix says; "" when it says nothing, or something that such a message cannot be."""
    suffix = re.search(r"\.[a-z0-9]+$", name.lower())
    found = (_SUFFIXES.get(suffix[0]) or _TABLE.guess_type(f"x{suffix[0]}")[0] or "") if suffix else ""
    return found if type is MessageType.DOCUMENT or found.startswith(f"{type.value.lower()}/") else ""
