"""The file of a message, fetched to be attached. Nothing of the message has left while this runs, so no failure of it is a doubt."""

import mimetypes
import re
from dataclasses import dataclass, field, replace
from datetime import timedelta
from urllib.parse import unquote, urlsplit

from django.conf import settings

from sessions_app.providers import http
from sessions_app.providers.base import Deadline, ErrorCode, MessageType, SendResult
from sessions_app.providers.reachable import why_not_public

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
FILE_AT_MOST = 10 * 1024 * 1024
UNKNOWN_TYPE = "application/octet-stream"
_TYPE = re.compile(r"(application|audio|font|image|model|text|video)/[A-Za-z0-9.+_-]{1,100}")
_EXPECTED = {MessageType.IMAGE: "image/", MessageType.VIDEO: "video/", MessageType.AUDIO: "audio/"}


@dataclass(frozen=True)
class File:
    name: str
    content: bytes = field(repr=False)
    content_type: str

    def called(self, name: str) -> "File":
        """As the recipient is to see it; "" for the name that its address has."""
        plain = re.sub(r"[\x00-\x1f\x7f/\\]", "_", name).strip()
        return replace(self, name=plain[:150]) if plain else self


def fetch(url: str, type: MessageType, hidden: list[str], deadline: Deadline) -> File | SendResult:
    """The file, or what is to become of the message without it. It may use half of the time that is left."""
    is_ours = _is_uploaded(url)
    if not is_ours and (problem := why_not_public(url, allow=LOOPBACK if settings.DEBUG else frozenset())):
        return SendResult.refused(ErrorCode.MISCONFIGURED, http.scrub(f"The file cannot be fetched. {problem}", hidden))
    half = Deadline(timedelta(seconds=deadline.remaining / 2))
    try:
        response = http.get_bytes(url, deadline=half, at_most=FILE_AT_MOST, public_only=not (settings.DEBUG or is_ours))
    except http.NotSent as error:
        return SendResult.refused(ErrorCode.TRANSIENT, http.scrub(f"The file cannot be fetched: {error}", hidden))
    except http.TooLarge:
        return SendResult.refused(ErrorCode.MISCONFIGURED, f"The file is too large to attach: at most {FILE_AT_MOST >> 20} MB.")
    except http.NoAnswer as error:
        return SendResult.refused(ErrorCode.TRANSIENT, http.scrub(f"The file was not fetched: {error}", hidden))
    return _read(response, url, type)


def _is_uploaded(url: str) -> bool:
    """A file that staff uploaded, on this very site, which may stand in a network of its own."""
    return re.fullmatch(re.escape(settings.PUBLIC_URL) + r"/files/[A-Za-z0-9_-]{32}/[^/?#]+", url) is not None


def _read(response: http.Response, url: str, type: MessageType) -> File | SendResult:
    if response.status != 200 or not response.body:
        code = ErrorCode.TRANSIENT if response.status >= 500 or response.status == 429 else ErrorCode.MISCONFIGURED
        return SendResult.refused(code, f"There is no file at its address: the server there answered {response.status}.")
    name = re.sub(r"[\x00-\x1f\x7f/\\]", "_", unquote(urlsplit(url).path.rpartition("/")[2]))[:150] or "file"
    told = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    content_type = told if _TYPE.fullmatch(told) else UNKNOWN_TYPE
    if content_type == UNKNOWN_TYPE:
        content_type = mimetypes.guess_type(name)[0] or UNKNOWN_TYPE
    expected = _EXPECTED.get(type, "")
    if not content_type.startswith(expected) and content_type != UNKNOWN_TYPE:
        return SendResult.refused(ErrorCode.MISCONFIGURED, f"The file is {content_type} and not {expected}*: check its address.")
    return File(name, response.body, content_type)
