"""A file from somebody's computer: whether a step of this type can send it, and the row that keeps it."""

import mimetypes
import re
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile as Upload

from campaigns.models import CampaignStep, UploadedFile

AT_MOST = 16 * 1024 * 1024  # what WhatsApp takes of a video; its documents may be larger, at an address of one's own
UNKNOWN_TYPE = "application/octet-stream"
EXPECTED = {CampaignStep.Type.IMAGE: "image", CampaignStep.Type.VIDEO: "video", CampaignStep.Type.AUDIO: "audio"}


def help_text() -> str:
    return f"At most {AT_MOST >> 20} MB. It is kept here, and the channel fetches it from {settings.PUBLIC_URL}."


def why_not(upload: "Upload[Any]", step_type: str) -> str:
    """A sentence, or "" for a file that can be sent. A template's file is judged by the channel, which knows what its template has."""
    if not upload.size:
        return "The file is empty."
    if upload.size > AT_MOST:
        size = f"{upload.size / 2**20:.1f} MB"
        return f"The file has {size}, and at most {AT_MOST >> 20} MB can be uploaded. Put it on a web server and give its address."
    if step_type == CampaignStep.Type.TEXT:
        return "A text goes without a file. Choose the type Image, Video, Audio or Document."
    kind = EXPECTED.get(CampaignStep.Type(step_type)) if step_type in CampaignStep.Type else None
    if kind and not _type_of(_plain(upload.name)).startswith(f"{kind}/"):
        return f'"{_plain(upload.name)}" is no {kind} by its name. Choose another file, or another type of message.'
    return ""


def kept(upload: "Upload[Any]") -> UploadedFile:
    """Not saved yet; its address is known."""
    name = _plain(upload.name)
    return UploadedFile(name=name, content_type=_type_of(name), content=upload.read())


def _plain(name: str | None) -> str:
    """As people see it, without what an address or a header could not carry, its ending whole."""
    plain = re.sub(r"[\x00-\x1f\x7f/\\?#%]+", "_", name or "").strip(". ") or "file"
    stem, dot, ending = plain.rpartition(".")
    return f"{stem[:120]}.{ending[:20]}" if dot and stem else plain[:140]


def _type_of(name: str) -> str:
    return mimetypes.guess_type(name)[0] or UNKNOWN_TYPE
