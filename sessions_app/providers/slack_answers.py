"""What Slack's answers mean. Pure.

By `error` for the Web API, which answers 200 to nearly everything; by status and word for an incoming webhook.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from sessions_app.providers import http
from sessions_app.providers.base import ErrorCode, SendResult

EVENT_TYPE = "paceline_message"
TS = re.compile(r"[0-9]{1,12}\.[0-9]{1,6}", re.ASCII)

ACCOUNT = (ErrorCode.DISCONNECTED, "Slack refused the bot token: install the app again, with the scope chat:write, and enter its new token")
_PERSON = (ErrorCode.INVALID_RECIPIENT, "The app cannot write to this channel or person")
_CONTENT = (ErrorCode.MISCONFIGURED, "Slack refused the message, and would refuse it to everybody")
_TEXT = (ErrorCode.FATAL, "Slack does not take this text")
_THROTTLED = (ErrorCode.RATE_LIMIT, "Too many messages")
_LOST = (ErrorCode.UNCONFIRMED, "Slack failed, perhaps after sending")
_DEAD_HOOK = (ErrorCode.DISCONNECTED, "Slack no longer takes this webhook URL: make a new one in the app and enter it")

# By `error`, of the Web API. Names that begin alike stand in _BY_PREFIX; what stands nowhere is a doubt.
_BY_NAME: Mapping[str, tuple[ErrorCode, str]] = {
    **dict.fromkeys(("ratelimited", "rate_limited", "message_limit_exceeded"), _THROTTLED),
    **dict.fromkeys(
        (
            "invalid_auth",
            "not_authed",
            "account_inactive",
            "token_revoked",
            "token_expired",
            "missing_scope",
            "no_permission",
            "not_allowed_token_type",
            "org_login_required",
            "team_added_to_org",
            "accesslimited",
            "access_denied",
            "ekm_access_denied",
            "app_access_restricted",
            "two_factor_setup_required",
            "enterprise_is_restricted",
        ),
        ACCOUNT,
    ),
    **dict.fromkeys(("channel_not_found", "not_in_channel", "is_archived", "user_not_found", "cannot_reply_to_message"), _PERSON),
    "messages_tab_disabled": (
        ErrorCode.MISCONFIGURED,
        "People cannot get messages of this app: switch the Messages Tab on in its App Home",
    ),
    **dict.fromkeys(("no_text", "msg_too_long"), _TEXT),
    **dict.fromkeys(
        ("msg_blocks_too_long", "too_many_attachments", "attachment_payload_limit_exceeded", "markdown_text_conflict", "missing_post_type"),
        _CONTENT,
    ),
    "request_timeout": (ErrorCode.TRANSIENT, "Slack did not get the whole request"),
}
_BY_PREFIX = {"restricted_action": _PERSON, "metadata_": _CONTENT, "invalid_": _CONTENT}


def escaped(text: str) -> str:
    """As Slack wants it: otherwise a name with <!channel> in it would ring a whole channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def read_send(response: http.Response, hidden: list[str]) -> SendResult:
    answer = json_object(response)
    message_id = message_id_of(answer.get("channel"), answer.get("ts"))
    if response.status == 200 and answer.get("ok") is True and message_id:
        return SendResult.accepted(message_id, http_status=200)
    code, advice = _LOST
    if response.status == 429:
        code, advice = _THROTTLED
    elif response.status < 500 and answer.get("ok") is False:
        code, advice = refusal_of(error_name(answer))
    return _refused(response, code, f"{advice} ({response.status}): {vendor_words(answer)}", hidden)


def read_hook(response: http.Response, hidden: list[str]) -> SendResult:
    """The answers of an incoming webhook: plain words, with a status that means something."""
    words = response.body.decode(errors="replace").strip()
    if response.status == 200 and words == "ok":
        return SendResult.accepted(http_status=200)
    code, advice = _LOST
    if response.status == 429:
        code, advice = _THROTTLED
    elif response.status in (403, 404, 410) or (
        response.status == 400 and words in ("no_service", "no_team", "invalid_token", "user_not_found")
    ):
        code, advice = _DEAD_HOOK
    elif response.status == 400:
        code, advice = _TEXT if words == "no_text" else _CONTENT
    return _refused(response, code, f"{advice} ({response.status}): {words}", hidden)


def _refused(response: http.Response, code: ErrorCode, detail: str, hidden: list[str]) -> SendResult:
    wait = response.retry_after if code == ErrorCode.RATE_LIMIT else None
    return SendResult.refused(code, http.scrub(detail, hidden), retry_after=wait, http_status=response.status)


def refusal_of(name: str) -> tuple[ErrorCode, str]:
    return _BY_NAME.get(name) or next((found for start, found in _BY_PREFIX.items() if name.startswith(start)), _LOST)


def error_name(answer: Mapping[str, Any]) -> str:
    """Slack's names are words with low lines; anything else is not one."""
    name = answer.get("error")
    return name if isinstance(name, str) and re.fullmatch(r"[a-z0-9_]{1,60}", name) else ""


def vendor_words(answer: Mapping[str, Any]) -> str:
    about = answer.get("response_metadata")
    said = [answer.get("error"), *((about.get("messages") or []) if isinstance(about, dict) else [])]
    return "; ".join(str(word) for word in said if word) or "not an answer of Slack"


def message_id_of(channel: Any, ts: Any) -> str:
    return f"{channel}:{ts}" if isinstance(channel, str) and channel and isinstance(ts, str) and TS.fullmatch(ts) else ""


def reference_in(message: Any) -> str:
    metadata = message.get("metadata") if isinstance(message, dict) else None
    if not isinstance(metadata, dict) or metadata.get("event_type") != EVENT_TYPE or not isinstance(metadata.get("event_payload"), dict):
        return ""
    return str(metadata["event_payload"].get("client_ref"))


def read_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def json_object(response: http.Response) -> dict[str, Any]:
    answer = read_json(response.body)
    return answer if isinstance(answer, dict) else {}
