from typing import Any

import pytest

from sessions_app.providers.base import ErrorCode, Message, MessageType, Presence, SentMessage
from sessions_app.providers.waha_connection import ENGINES
from tests.providers.contract import REF, SECRET, TEXT, soon
from tests.providers.scripted_server import reply
from tests.providers.test_waha import CHAT, CLAIMED_AT, SENT, failure, matches
from tests.providers.test_waha_sessions import OneWaha

# POST /api/sendImage, sendFile, sendVideo and sendVoice likewise; `file` is what follows.
SEND_MEDIA: dict[str, dict[str, tuple[type, bool]]] = {
    "sendImage": {"caption": (str, False), "reply_to": (str, False)},
    "sendFile": {"caption": (str, False), "reply_to": (str, False)},
    "sendVideo": {"caption": (str, False), "reply_to": (str, False), "asNote": (bool, False), "convert": (bool, True)},
    "sendVoice": {"reply_to": (str, False), "convert": (bool, True)},
}
EVERY_MEDIA: dict[str, tuple[type, bool]] = {"session": (str, True), "chatId": (str, True), "file": (dict, True)}
FILES: dict[str, dict[str, tuple[type, bool]]] = {
    "sendImage": {"mimetype": (str, True), "url": (str, True), "filename": (str, False)},
    "sendFile": {"mimetype": (str, True), "url": (str, True), "filename": (str, False)},
    "sendVideo": {"mimetype": (str, True), "url": (str, True), "filename": (str, True)},
    "sendVoice": {"mimetype": (str, True), "url": (str, True)},
}
IMAGE, VIDEO, AUDIO, DOCUMENT = MessageType.IMAGE, MessageType.VIDEO, MessageType.AUDIO, MessageType.DOCUMENT
MEDIA_CALLS = {IMAGE: "sendImage", DOCUMENT: "sendFile", VIDEO: "sendVideo", AUDIO: "sendVoice"}
OPUS = "audio/ogg; codecs=opus"


class TestSending(OneWaha):
    @pytest.fixture(autouse=True)
    def _accepts(self, _server: None) -> None:
        self.server.usual = reply(201, SENT["WEBJS"])

    def message(self, type: MessageType) -> Message:
        return Message(type, text=TEXT, media_url="https://example.org/a.jpg", caption=TEXT)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize(("type", "call"), MEDIA_CALLS.items(), ids=MEDIA_CALLS.values())
    def test_media_requests_are_as_published(self, type: MessageType, call: str, engine: str) -> None:
        assert self.make(engine=engine).send(CHAT, self.message(type), REF, soon()).message_id == "3EB0AA"
        request = self.server.requests[0]
        body = request.json()
        assert (request.method, request.path, request.headers["x-api-key"]) == ("POST", f"/api/{call}", SECRET)
        matches(body, EVERY_MEDIA | SEND_MEDIA[call])
        matches(body["file"], FILES[call])
        assert body["file"]["url"] == "https://example.org/a.jpg"
        assert body.get("caption") == (None if type is AUDIO else TEXT.replace("\r\n", "\n"))
        assert body.get("convert") == (False if type in (VIDEO, AUDIO) else None)

    @pytest.mark.parametrize(
        ("type", "url", "filename", "mimetype", "name"),
        [
            (IMAGE, "https://example.org/a/cat.PNG?sig=x.jpg", "", "image/png", "cat.PNG"),
            (IMAGE, "https://example.org/cat.webp#x", "", "image/webp", "cat.webp"),
            (IMAGE, "https://example.org/picture", "", "image/jpeg", "picture"),
            (IMAGE, "https://example.org/report.pdf", "", "image/jpeg", "report.pdf"),
            (IMAGE, "https://example.org", "", "image/jpeg", "image.jpg"),
            (VIDEO, "https://example.org/", "", "video/mp4", "video.mp4"),
            (VIDEO, "https://example.org/a.webm", "trip.webm", "video/webm", "trip.webm"),
            (AUDIO, "https://example.org/a.ogg", "x.ogg", OPUS, None),
            (AUDIO, "https://example.org/a.opus", "", OPUS, None),
            (AUDIO, "https://example.org/a.mp3", "", "audio/mpeg", None),
            (AUDIO, "https://example.org/a", "", OPUS, None),
            (DOCUMENT, "https://example.org/Rela%C3%A7%C3%A3o%201.pdf", "", "application/pdf", "Relação 1.pdf"),
            (DOCUMENT, "https://example.org/a.pdf", " Invoice 7.pdf ", "application/pdf", "Invoice 7.pdf"),
            (
                DOCUMENT,
                "https://example.org/download?id=7",
                "list.xlsx",
                "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
                "list.xlsx",
            ),
            (DOCUMENT, "https://example.org/a.jpg", "", "image/jpeg", "a.jpg"),
            (DOCUMENT, "https://example.org/a.unheard", "", "application/octet-stream", "a.unheard"),
        ],
    )
    def test_the_file(self, type: MessageType, url: str, filename: str, mimetype: str, name: str | None) -> None:
        self.make().send(CHAT, Message(type, media_url=url, filename=filename), REF, soon())
        file = self.server.requests[0].json()["file"]
        assert (file["url"], file["mimetype"], file.get("filename")) == (url, mimetype, name)

    def test_without_a_caption(self) -> None:
        for type in (IMAGE, DOCUMENT, VIDEO):
            self.make().send(CHAT, Message(type, media_url="https://example.org/a", caption=" \n"), REF, soon())
        image, document, video = (request.json() for request in self.server.requests)
        assert "caption" not in image and "caption" not in document
        assert video["caption"] == "", "WAHA has a caption of its own for a video that has none"

    def test_conversion_is_a_choice(self) -> None:
        for type in (VIDEO, AUDIO, IMAGE, DOCUMENT):
            self.make(convert_media=True).send(CHAT, self.message(type), REF, soon())
        assert [request.json().get("convert") for request in self.server.requests] == [True, True, None, None]

    @pytest.mark.parametrize(
        "url", ["", "file:///etc/passwd", "ftp://example.org/a.jpg", "https://", "https:///a.jpg", "https://example.org/a b"]
    )
    def test_no_address_of_the_media_is_misconfigured(self, url: str) -> None:
        assert self.make().send(CHAT, Message(IMAGE, media_url=url), REF, soon()).code == ErrorCode.MISCONFIGURED
        assert self.server.connections == 0

    def test_neither_caption_nor_url_in_details(self) -> None:
        message = Message(IMAGE, media_url="https://example.org/a.jpg?signature=abcdef", caption=TEXT)
        self.server.script(failure(f"{message.media_url} {TEXT} {CHAT} {SECRET}: 404"))
        result = self.make().send(CHAT, message, REF, soon())
        assert result.code == ErrorCode.UNCONFIRMED
        assert not any(word in result.detail for word in ("signature", "Dear Ana", "Reply STOP", CHAT, SECRET))


class TestLookingFor(OneWaha):
    def verify_media(self, *found: Any, type: MessageType = IMAGE, caption: str = TEXT, engine: str = "NOWEB") -> Presence:
        self.server.script(reply(200, list(found)))
        message = Message(type, media_url="https://example.org/a.jpg", caption=caption)
        return self.make(engine=engine).verify(SentMessage(CHAT, message, REF, CLAIMED_AT), soon()).presence

    def media(self, **changes: Any) -> dict[str, Any]:
        whole = {"id": f"true_{CHAT}_3EB0AA", "timestamp": int(CLAIMED_AT.timestamp()) + 3, "fromMe": True, "to": CHAT, "ack": 1}
        said = {"body": TEXT.replace("\r\n", "\n"), "hasMedia": True, "media": {"mimetype": "image/jpeg"}}
        return {**whole, **said, **changes}

    @pytest.mark.parametrize("engine", ENGINES)
    def test_media_is_searched_for_on_every_engine(self, engine: str) -> None:
        assert self.verify_media(self.media(), engine=engine) == Presence.PRESENT
        assert self.server.requests[0].path.startswith("/api/sales/chats/12025550101%40c.us/messages?")

    @pytest.mark.parametrize(
        ("changes", "presence"),
        [
            ({}, Presence.PRESENT),
            ({"media": None}, Presence.PRESENT),  # the caption says enough
            ({"media": None, "_data": {"type": "image"}}, Presence.PRESENT),
            ({"ack": 0}, Presence.UNKNOWN),
            ({"body": "another caption"}, Presence.ABSENT),
            ({"hasMedia": False, "media": None}, Presence.ABSENT),  # the same words as a text
            ({"media": {"mimetype": "video/mp4"}}, Presence.ABSENT),
            ({"fromMe": False}, Presence.ABSENT),
            ({"timestamp": int(CLAIMED_AT.timestamp()) - 3600}, Presence.ABSENT),
        ],
        ids=repr,
    )
    def test_media_by_its_caption(self, changes: dict[str, Any], presence: Presence) -> None:
        assert self.verify_media(self.media(**changes)) == presence

    @pytest.mark.parametrize(
        ("type", "changes", "presence"),
        [
            (AUDIO, {"media": {"mimetype": OPUS}}, Presence.PRESENT),
            (AUDIO, {"media": None, "_data": {"type": "ptt"}}, Presence.PRESENT),
            (AUDIO, {"media": None, "_data": {"message": {"audioMessage": {"ptt": True}}}}, Presence.PRESENT),
            (AUDIO, {"media": None, "_data": {"Message": {"audioMessage": {"PTT": True}}}}, Presence.PRESENT),
            (AUDIO, {"media": None}, Presence.UNKNOWN),
            (AUDIO, {"media": {"mimetype": "image/png"}}, Presence.ABSENT),
            (IMAGE, {}, Presence.PRESENT),
            (IMAGE, {"body": "A caption that ours has not"}, Presence.ABSENT),
            (DOCUMENT, {"media": None, "_data": {"type": "document"}, "body": "a.jpg"}, Presence.PRESENT),
            (DOCUMENT, {"media": {"mimetype": "application/pdf"}, "body": "a.pdf"}, Presence.PRESENT),
            (DOCUMENT, {"_data": {"type": "image"}}, Presence.ABSENT),
            (DOCUMENT, {}, Presence.UNKNOWN),  # a picture, or a document that is one
        ],
    )
    def test_media_without_a_caption_by_its_kind(self, type: MessageType, changes: dict[str, Any], presence: Presence) -> None:
        assert self.verify_media(self.media(**{"body": "", **changes}), type=type, caption="") == presence
