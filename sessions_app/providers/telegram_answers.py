"""What Telegram's answers mean. Pure."""

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sessions_app.providers import http
from sessions_app.providers.base import ErrorCode, SendResult

# Of a 400, by Telegram's words: about this chat, or about this one message. What stands in no line would be refused to everybody.
_ABOUT_THE_CHAT = re.compile(
    r"chat not found|user not found|peer_id_invalid|chat_id_invalid|chat_id is empty|group chat was deactivated|group chat was deleted"
    r"|not enough rights|have no rights|need administrator rights|chat_write_forbidden|chat_admin_required|chat_restricted"
    r"|user_is_blocked|input_user_deactivated|user_is_bot|voice_messages_forbidden|topic_closed|chat_send_\w+_forbidden",
    re.IGNORECASE,
)
_ABOUT_THE_MESSAGE = re.compile(
    r"message is too long|message_too_long|caption is too long|caption_too_long|text is empty|text must be", re.IGNORECASE
)
_UPGRADED = (
    "The group has become a supergroup and has a new id. Look the new one up in Telegram (it begins with -100) and put it into the list"
)


def read_send(response: http.Response, address: str, hidden: list[str]) -> SendResult:
    answer = json_object(response)
    result = answer.get("result")
    if response.status == 200 and answer.get("ok") is True and isinstance(result, dict) and isinstance(result.get("message_id"), int):
        chat = result.get("chat")
        number = chat.get("id") if isinstance(chat, dict) else None  # a message id means something in its chat only
        return SendResult.accepted(f"{number or address}:{result['message_id']}", http_status=200)
    code, advice = _refusal(response, answer)
    detail = http.scrub(f"{advice} ({response.status}): {vendor_words(response)}", [*hidden, *_new_ids(answer)])
    wait = _retry_after(response, answer) if code == ErrorCode.RATE_LIMIT else None
    return SendResult.refused(code, detail, retry_after=wait, http_status=response.status)


def _refusal(response: http.Response, answer: Mapping[str, Any]) -> tuple[ErrorCode, str]:
    if response.status == 429:
        return ErrorCode.RATE_LIMIT, "Too many messages"
    if answer.get("ok") is not False:
        return ErrorCode.UNCONFIRMED, "Not an answer of Telegram"
    words = str(answer.get("description", ""))
    match response.status:
        case 401 | 404:
            return ErrorCode.DISCONNECTED, "Telegram does not know this bot token: enter a new one"
        case 403:  # always about the chat: blocked, kicked, not a member, never started, deactivated
            return ErrorCode.INVALID_RECIPIENT, "The bot may not write to this chat"
        case 400 if _new_ids(answer) or "upgraded to a supergroup" in words:
            return ErrorCode.INVALID_RECIPIENT, _UPGRADED
        case 400 if _ABOUT_THE_CHAT.search(words):
            return ErrorCode.INVALID_RECIPIENT, "Telegram cannot deliver to this chat"
        case 400 if _ABOUT_THE_MESSAGE.search(words):
            return ErrorCode.FATAL, "Telegram does not take this text"
        case 400:
            return ErrorCode.MISCONFIGURED, "Telegram refused the message, and would refuse it to everybody"
    return ErrorCode.UNCONFIRMED, "Telegram failed, perhaps after sending"


def _parameters(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = answer.get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def _new_ids(answer: Mapping[str, Any]) -> list[str]:
    found = _parameters(answer).get("migrate_to_chat_id")
    return [str(found), str(found).lstrip("-")] if found else []


def _retry_after(response: http.Response, answer: Mapping[str, Any]) -> timedelta | None:
    seconds = _parameters(answer).get("retry_after")
    if isinstance(seconds, int) and 0 <= seconds < 10**7:
        return timedelta(seconds=seconds)
    return response.retry_after


def read_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def json_object(response: http.Response) -> dict[str, Any]:
    answer = read_json(response.body)
    return answer if isinstance(answer, dict) else {}


def vendor_words(response: http.Response) -> str:
    return str(json_object(response).get("description") or f"{len(response.body)} bytes with status {response.status}")
