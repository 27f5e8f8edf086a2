"""What channels fetch: the files that staff uploaded."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_safe

from campaigns.models import UploadedFile


@require_safe
def uploaded_file(request: HttpRequest, token: str, name: str) -> HttpResponse:
    """To whoever knows the token. To be saved, never shown: a page among them could otherwise act as the admin that is open beside it."""
    file = get_object_or_404(UploadedFile, token=token, name=name)
    headers = {
        "Content-Disposition": content_disposition_header(as_attachment=True, filename=file.name) or "attachment",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "private, max-age=86400, immutable",
        "X-Robots-Tag": "noindex",
    }
    return HttpResponse(bytes(file.content), content_type=file.content_type, headers=headers)
