"""The jobs that an operator's cron calls: GET says how one stands, POST runs it once and answers its counts."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.db.models.functions import Now
from django.http import HttpRequest, JsonResponse

from campaigns.transitions import Refused
from dispatch import driving, jobs, retry
from dispatch.models import JobAnswer
from dispatch.views.access import answer, token_required

logger = logging.getLogger("paceline.jobs")

MOST_BYTES = 64 * 1024
ANSWERS_ARE_KEPT_FOR = timedelta(hours=24)
OLD_ANSWERS_FORGOTTEN_AT_ONCE = 100
METHODS = "GET, HEAD, POST"

Order = dict[str, Any]  # what the body asks for, checked


@dataclass(frozen=True)
class _Field:
    words: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True)
class _Job:
    name: str
    state: Callable[[], dict[str, Any]]
    run: Callable[[Order], dict[str, Any]]
    fields: Mapping[str, _Field]


class _Wrong(Exception):
    """The caller's mistake: the status, a sentence, and headers."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers


def _serve(job: _Job, request: HttpRequest) -> JsonResponse:
    try:
        if request.method in {"GET", "HEAD"} and "run" not in request.GET:
            return answer(_state(job))
        return _once(job, request.headers.get("Idempotency-Key"), _order(job, request))
    except _Wrong as wrong:
        return answer({"error": str(wrong)}, wrong.status, **wrong.headers)
    except Refused as refusal:
        return answer({"error": str(refusal)}, 400)
    except Exception:  # its text may carry what is in a row; the log is for those who may read it
        logger.exception("a job failed", extra={"job": job.name})
        return answer({"error": "the job failed; the log of the web process says why"}, 500)


def _state(job: _Job) -> dict[str, Any]:
    """Of an error its kind: the rest may carry what is in a row, and stands in the admin."""
    state = job.state()
    return state | {"last_error": state["last_error"].partition(":")[0]}


# -- what is asked for ---------------------------------------------------------------------------------------------------------


def _order(job: _Job, request: HttpRequest) -> Order:
    if request.method == "POST":
        return _checked(job, _body(request))
    if "run" not in request.GET or request.method not in {"GET", "HEAD"}:
        raise _Wrong(405, "use GET for the state and POST to run the job", Allow=METHODS)
    if request.method != "GET" or not settings.CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN:
        sentence = "use POST to run the job; GET with run=true does only where CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN=true is set"
        raise _Wrong(405, sentence, Allow="POST")
    if request.GET["run"].lower() != "true":
        raise _Wrong(400, "run must be true; leave it out for the state")
    return {}


def _body(request: HttpRequest) -> Any:
    if "Transfer-Encoding" in request.headers:  # Django takes such a body for an empty one, and "dryRun" would not be heard
        raise _Wrong(411, "send the body with a Content-Length, not in chunks")
    if int(request.META.get("CONTENT_LENGTH") or 0) > MOST_BYTES:
        raise _Wrong(413, f"the body may have {MOST_BYTES} bytes")
    if not request.body.strip():
        return {}
    if request.content_type != "application/json":
        raise _Wrong(415, "send the body as JSON, with Content-Type: application/json")
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError):
        raise _Wrong(400, "the body is not valid JSON") from None


def _checked(job: _Job, body: Any) -> Order:
    if not isinstance(body, dict):
        raise _Wrong(400, "the body must be a JSON object")
    for name, value in body.items():
        if name not in job.fields:
            known = ", ".join(job.fields) or "none"
            raise _Wrong(400, f"the key {name[:50]!r} is not known here; known: {known}")
        if not job.fields[name].accepts(value):
            raise _Wrong(400, f"{name} must be {job.fields[name].words}")
    return body


# -- running it, once for each Idempotency-Key ---------------------------------------------------------------------------------


def _run(job: _Job, order: Order) -> dict[str, Any]:
    try:
        return {"status": "done", "counts": job.run(order)}
    except jobs.Busy as busy:
        return {"status": "already running", "since": busy.since and busy.since.isoformat(), "holder": busy.holder}


def _once(job: _Job, key: str | None, order: Order) -> JsonResponse:
    """Only the answer of a run that was done is kept: after an error, or beside another run, the same key may try again."""
    if key is None:
        return answer(_run(job, order))
    if not 0 < len(key) <= 200 or not key.isprintable():
        raise _Wrong(400, "Idempotency-Key must have 1 to 200 printable characters")
    fingerprint = hashlib.sha256(json.dumps(order, sort_keys=True).encode()).hexdigest()
    mine = JobAnswer(job=job.name, key=key, fingerprint=fingerprint)
    _forget_old(job, key)
    JobAnswer.objects.bulk_create([mine], ignore_conflicts=True)
    kept = JobAnswer.objects.filter(job=job.name, key=key).first()
    if kept is None or kept.pk != mine.pk:
        return _again(kept, fingerprint)
    done: dict[str, Any] = {}
    try:
        done = _run(job, order)
    finally:
        claim = JobAnswer.objects.filter(pk=mine.pk)
        if done.get("status") == "done":
            outcome = {"status": 200, "body": done}
            claim.update(**outcome)
        else:
            claim.delete()
    return answer(done)


def _again(kept: JobAnswer | None, fingerprint: str) -> JsonResponse:
    if kept is not None and kept.fingerprint != fingerprint:
        raise _Wrong(422, "this Idempotency-Key was used with another body; take a new one for each order")
    if kept is None or kept.status is None:
        raise _Wrong(409, "the first call with this Idempotency-Key is still on its way", Retry_After="5")
    return answer(kept.body or {}, kept.status, Idempotency_Replayed="true")


def _forget_old(job: _Job, key: str) -> None:
    """What is past its day, some at a time; and of this key a claim whose process must have died, since no run takes so long."""
    old = Q(created_at__lt=Now() - ANSWERS_ARE_KEPT_FOR)
    longest = max(timedelta(seconds=settings.CAMPAIGN_RETRY_JOB_LOCK_TTL_SECONDS), driving.lock_time())
    died = Q(status__isnull=True, created_at__lt=Now() - longest)
    JobAnswer.objects.filter(old | died, job=job.name, key=key).delete()
    oldest = JobAnswer.objects.filter(old).order_by("created_at").values("pk")[:OLD_ANSWERS_FORGOTTEN_AT_ONCE]
    JobAnswer.objects.filter(pk__in=oldest).delete()


# -- the jobs ------------------------------------------------------------------------------------------------------------------


def _whole(most: int) -> _Field:
    return _Field(f"a whole number from 1 to {most}", lambda value: type(value) is int and 1 <= value <= most)


def _hours(value: Any) -> bool:
    return type(value) in {int, float} and 0 < value <= 24 * 3660


ID = _whole(2**63 - 1)
TEXT = _Field(
    "a text of up to 200 printable characters", lambda value: isinstance(value, str) and len(value) <= 200 and value.isprintable()
)
RETRY_FIELDS = {
    "campaign": ID,
    "tenant": TEXT,
    "session": ID,
    "errorCode": TEXT,
    "maxAgeHours": _Field("a number of hours, above 0 and up to ten years", _hours),
    "batchSize": _whole(10_000),
    "maxCampaigns": _whole(10_000),
    "dryRun": _Field("true or false", lambda value: isinstance(value, bool)),
}
SCOPE = {"campaign": "campaign_id", "tenant": "tenant", "session": "session_id", "errorCode": "error_code", "maxAgeHours": "max_age"}


def _retry(order: Order) -> dict[str, Any]:
    """What the body does not say of the scope, the settings say."""
    if "maxAgeHours" in order:
        order = order | {"maxAgeHours": timedelta(hours=order["maxAgeHours"])}
    scope = replace(retry.Scope.from_settings(), **{SCOPE[name]: value for name, value in order.items() if name in SCOPE})
    sizes = {"batch_size": order.get("batchSize"), "max_campaigns": order.get("maxCampaigns")}
    return retry.run_batch(scope, **sizes, dry_run=order.get("dryRun", False))


def _query_allowed() -> bool:
    return settings.CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN


_with_token = token_required("CAMPAIGN_RETRY_JOB_TOKEN", allow_query=_query_allowed)
_RETRY = _Job(jobs.RETRY, retry.state, _retry, RETRY_FIELDS)
_SCHEDULER = _Job(jobs.SCHEDULER, driving.state, lambda order: driving.drive_once(), {})


@_with_token
def campaign_retry(request: HttpRequest) -> JsonResponse:
    return _serve(_RETRY, request)


@_with_token
def scheduler(request: HttpRequest) -> JsonResponse:
    """One pass for a host without a long-running process; it takes about half a minute at most when the channel is quick."""
    return _serve(_SCHEDULER, request)
