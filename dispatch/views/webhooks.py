"""What providers call: checked, stored and answered at once; applied by the background tasks."""

import logging
import uuid

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django_q.tasks import async_task

from dispatch import delivery
from dispatch.views.access import answer
from sessions_app.models import Session
from sessions_app.providers.base import WebhookRefused, WebhookRequest

logger = logging.getLogger("paceline.webhooks")

BODY_AT_MOST = 1024 * 1024


class _Unreadable(Exception):
    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


@csrf_exempt
def receive(request: HttpRequest, session_uuid: uuid.UUID) -> HttpResponse:
    """GET and POST /api/webhooks/<session uuid>/. The signature is the proof. An address of nobody and a wrong signature look alike."""
    if request.method not in {"GET", "POST"}:
        return answer({"error": "only GET and POST"}, 405, Allow="GET, POST")
    try:
        body = _body(request)
    except _Unreadable as problem:
        return answer({"error": str(problem)}, problem.status)
    session = Session.objects.filter(uuid=session_uuid).first()
    if session is None:
        return answer({"error": "not accepted"}, 401)
    try:
        accepted = session.make_provider().accept_webhook(_as_it_came(request, body))
    except WebhookRefused as refusal:
        logger.warning("webhook refused", extra={"session": session.name, "why": str(refusal)})
        delivery.refused(session, str(refusal))
        return answer({"error": "not accepted"}, refusal.status)
    except Exception as error:  # unreadable credentials, a channel that was taken out, a bug in a provider: the vendor will try again
        logger.error("a webhook could not be read", extra={"session": session.name, "error": type(error).__name__})
        delivery.refused(session, f"could not be read: {type(error).__name__}")
        return answer({"error": "could not be read"}, 500)
    if accepted.items and delivery.store(session, accepted.items):
        _have_applied()
    return HttpResponse(accepted.body or "ok", content_type=accepted.content_type, headers={"Cache-Control": "no-store"})


def _body(request: HttpRequest) -> bytes:
    """Raw, and no more of it than one byte too many. Django itself sees nothing of a body that is sent in chunks."""
    stream = request
    if "chunked" in request.headers.get("Transfer-Encoding", "").lower():
        if not request.META.get("wsgi.input_terminated"):
            raise _Unreadable("send the body with its Content-Length", 411)
        stream = request.META["wsgi.input"]
    try:
        body = stream.read(BODY_AT_MOST + 1)
    except OSError:
        raise _Unreadable("the body was cut off", 400) from None
    if len(body) > BODY_AT_MOST:
        raise _Unreadable(f"the body is larger than {BODY_AT_MOST} bytes", 413)
    return body


def _as_it_came(request: HttpRequest, body: bytes) -> WebhookRequest:
    return WebhookRequest(
        method=request.method or "",
        url=request.build_absolute_uri(),
        headers={name.lower(): value for name, value in request.headers.items()},
        query=request.GET.dict(),
        body=body,
    )


def _have_applied() -> None:
    """What this leaves out, the schedule of every minute finds."""
    try:
        async_task("dispatch.tasks.apply_webhooks", group="webhooks", save=False)
    except Exception:
        logger.exception("the background tasks could not be asked")
