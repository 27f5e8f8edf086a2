"""What monitoring asks. Nothing here writes, and no answer is kept by anybody on the way."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from dispatch.health import Status, examine
from dispatch.metrics import exposition
from dispatch.views.access import answer, is_right, token_required

TOKEN = "HEALTHCHECK_TOKEN"  # noqa: S105  the name of the setting


@csrf_exempt  # so that what is not allowed is answered as 405
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    """200 for ok and degraded, 503 for down; the status alone is for everybody.

    With the token, also what each component says. A wrong token and a missing one get the same answer, since the status is public, and a
    probe with an old token must not report that the installation is down. Without a token in the settings, details come with DEBUG alone.
    """
    found = examine()
    details = is_right(request, TOKEN, allow_query=True) or (settings.DEBUG and not settings.HEALTHCHECK_TOKEN)
    return answer(found.as_dict(details), 503 if found.status == Status.DOWN else 200)


@csrf_exempt
@require_safe
def scheduler_health(request: HttpRequest) -> HttpResponse:
    """200 while something drives the engine, else 503, also when there is nothing to send. `lastProcessed` is the end of the last pass."""
    scheduler = examine().of("scheduler")
    is_alive = scheduler is not None and scheduler.status == Status.OK
    last = scheduler.facts["last_pass_at"] if scheduler is not None else None
    return answer({"status": "ok" if is_alive else "down", "lastProcessed": last}, 200 if is_alive else 503)


@require_safe
@never_cache
@token_required(TOKEN, allow_query=lambda: True)
def metrics(request: HttpRequest) -> HttpResponse:
    """503 while the database does not answer or has no tables: scrapes that hang would use up the threads that answer /api/health."""
    found = examine()
    if found.cannot_be_read:
        return HttpResponse(f"{found.cannot_be_read}\n", status=503, content_type=CONTENT_TYPE_PLAIN_0_0_4)
    return HttpResponse(exposition(), content_type=CONTENT_TYPE_PLAIN_0_0_4)
