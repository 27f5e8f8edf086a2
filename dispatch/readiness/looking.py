"""Looks at the site from outside, as a visitor, a monitor and a cron would: over HTTP, without the database."""

import errno
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urljoin, urlsplit

from django.conf import settings

from sessions_app.clock import spoken
from sessions_app.providers import http
from sessions_app.providers.base import Deadline

LOOK_TAKES_AT_MOST = timedelta(seconds=10)
REDIRECTS_AT_MOST = 5
ROOT, HEALTH, JOB = "root page", "/api/health", "retry job"
JOB_PATH = "/api/jobs/campaign-retry"


class Trouble(StrEnum):
    """Kinds of bad news, by what mends them."""

    NOT_RUNNING = "not running"
    NO_ANSWER = "no answer"
    UNHEALTHY = "unhealthy"
    DEGRADED = "degraded"
    WRONG_TOKEN = "wrong token"  # noqa: S105  a kind of trouble
    CLOSED = "closed"  # no token is set there
    ELSEWHERE = "elsewhere"  # what answers is not this site, or not at this address


@dataclass(frozen=True)
class Look:
    name: str
    sentence: str
    trouble: Trouble | None = None
    http_status: int | None = None
    milliseconds: int = 0

    def failed(self, *, strict: bool = False) -> bool:
        """Degraded is a warning: what is sent is sent."""
        return self.trouble is not None and (strict or self.trouble is not Trouble.DEGRADED)

    def __str__(self) -> str:
        said = ": ".join(filter(None, (self.name, self.sentence)))
        return said if self.http_status is None else f"{said} ({self.http_status} in {self.milliseconds} ms)"

    def as_dict(self, *, strict: bool = False) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": not self.failed(strict=strict),
            "trouble": self.trouble,
            "sentence": self.sentence,
            "http_status": self.http_status,
            "milliseconds": self.milliseconds,
        }


class _Bad(Exception):
    def __init__(self, trouble: Trouble, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.trouble = trouble
        self.status = status


_Found = tuple[str, int, Trouble | None]  # sentence, HTTP status, and whether it is bad news


def look_at_site(base_url: str, *, within: timedelta = LOOK_TAKES_AT_MOST, now: datetime | None = None) -> list[Look]:
    base_url = base_url.rstrip("/")
    return [
        look_at_root(base_url, within=within),
        look_at_health(base_url, within=within),
        look_at_job(f"{base_url}{JOB_PATH}", within=within, now=now),
    ]


def look_at_root(base_url: str, *, within: timedelta = LOOK_TAKES_AT_MOST) -> Look:
    return _look(ROOT, lambda: _root(f"{base_url.rstrip('/')}/", Deadline(within)))


def look_at_health(base_url: str, *, within: timedelta = LOOK_TAKES_AT_MOST) -> Look:
    return _look(HEALTH, lambda: _health(f"{base_url.rstrip('/')}{HEALTH}", Deadline(within)))


def look_at_job(url: str, *, within: timedelta = LOOK_TAKES_AT_MOST, now: datetime | None = None) -> Look:
    """The state of the job; nothing is run."""
    return _look(JOB, lambda: _job(url, Deadline(within), now or datetime.now(UTC)))


def _look(name: str, find: Callable[[], _Found]) -> Look:
    began = time.monotonic()
    try:
        sentence, status, trouble = find()
        return Look(name, sentence, trouble, status, _since(began))
    except _Bad as bad:
        return Look(name, str(bad), bad.trouble, bad.status, _since(began))


def _since(began: float) -> int:
    return round(1000 * (time.monotonic() - began))


def _get(url: str, deadline: Deadline, token: str = "") -> http.Response:
    # as bytes: a token may have letters that no header takes as they are
    headers = {"Authorization": f"Bearer {token.encode().decode('latin-1')}"} if token else {}
    try:
        answer = http.get_json(url, deadline=deadline, headers=headers)
    except http.NotSent as error:
        if str(error) == os.strerror(errno.ECONNREFUSED):
            raise _Bad(Trouble.NOT_RUNNING, "the application is not running: connection refused") from None
        raise _Bad(Trouble.NO_ANSWER, f"the site cannot be reached: {_small(str(error))}") from None
    except http.NoAnswer as error:
        raise _Bad(Trouble.NO_ANSWER, f"the site took the call and did not answer: {_small(str(error))}") from None
    if answer.status in {502, 504} or (answer.status == 503 and _object(answer) is None):
        raise _Bad(Trouble.NOT_RUNNING, f"the application is not running: what stands before it answers {answer.status}", answer.status)
    return answer


def _small(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _root(url: str, deadline: Deadline) -> _Found:
    origin = _origin(url)
    for _ in range(REDIRECTS_AT_MOST):
        answer = _get(url, deadline)
        if not 300 <= answer.status < 400:
            break
        url = urljoin(url, answer.headers.get("Location", ""))
        _stay_at(origin, url, answer.status)
    if answer.status == 400:
        raise _Bad(Trouble.ELSEWHERE, f"the site does not know the host name of {origin}: add it to ALLOWED_HOSTS there", 400)
    if answer.status != 200:
        raise _Bad(Trouble.UNHEALTHY, f"answers {answer.status} instead of a page", answer.status)
    return "", 200, None


def _origin(url: str) -> str:
    """For sentences and comparisons: without a user's name and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()


def _stay_at(origin: str, url: str, status: int) -> None:
    if _origin(url) != origin:
        raise _Bad(Trouble.ELSEWHERE, f"leads away, to {_origin(url)}: is that the address of the site?", status)


def _json(url: str, deadline: Deadline, token: str, variable: str) -> tuple[int, Mapping[str, Any]]:
    """No redirect is followed: the token goes where it was meant to go."""
    answer = _get(url, deadline, token)
    if 300 <= answer.status < 400:
        _stay_at(_origin(url), urljoin(url, answer.headers.get("Location", "")), answer.status)
    body = _object(answer)
    said = _said(body, token)
    if answer.status in {401, 403}:
        why = f"{variable} here is not the one the site has" if token else f"the site wants a token, and {variable} is not set here"
        raise _Bad(Trouble.WRONG_TOKEN, f"wrong token: {why}", answer.status)
    if answer.status == 429:
        raise _Bad(Trouble.WRONG_TOKEN, "too many calls with a wrong token; wait a minute", 429)
    if answer.status == 400 and body is None:
        raise _Bad(Trouble.ELSEWHERE, f"the site does not know the host name of {_origin(url)}: add it to ALLOWED_HOSTS there", 400)
    if body is None:
        raise _Bad(Trouble.ELSEWHERE, f"something else than Paceline answers there: {answer.status}, and no JSON", answer.status)
    if answer.status == 503 and said:
        raise _Bad(Trouble.CLOSED if "no token is set" in said else Trouble.UNHEALTHY, said, 503)
    if answer.status not in {200, 503}:
        raise _Bad(Trouble.UNHEALTHY, f"answers {answer.status}" + (f": {said}" if said else ""), answer.status)
    return answer.status, body


def _object(answer: http.Response) -> Mapping[str, Any] | None:
    try:
        found = answer.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _said(body: Mapping[str, Any] | None, token: str) -> str:
    error = body.get("error") if body else None
    return http.scrub(error, [token]) if isinstance(error, str) else ""


def _health(url: str, deadline: Deadline) -> _Found:
    token = settings.HEALTHCHECK_TOKEN
    status, body = _json(url, deadline, token, "HEALTHCHECK_TOKEN")
    components = body.get("components")
    state = body.get("status")
    if state not in {"ok", "degraded", "down"}:
        raise _Bad(Trouble.ELSEWHERE, "something else than Paceline answers there: its JSON has no status that we know", status)
    wrong = [part for part in components if isinstance(part, dict) and part.get("status") != "ok"] if isinstance(components, list) else []
    reasons = "; ".join(f"{part.get('name')}: {part.get('detail') or part.get('status')}" for part in wrong)
    sentence = http.scrub(f"{state}: {reasons}" if reasons else str(state), [token])
    if state == "down":
        raise _Bad(Trouble.UNHEALTHY, f"the application runs and is unhealthy: {sentence}", status)
    if token and not isinstance(components, list):
        raise _Bad(Trouble.WRONG_TOKEN, f"{sentence}, but wrong token: HEALTHCHECK_TOKEN here is not the one the site has", status)
    return sentence, status, Trouble.DEGRADED if state == "degraded" else None


def _job(url: str, deadline: Deadline, now: datetime) -> _Found:
    token = settings.CAMPAIGN_RETRY_JOB_TOKEN
    status, body = _json(url, deadline, token, "CAMPAIGN_RETRY_JOB_TOKEN")
    pending = body.get("pending")
    if not isinstance(pending, dict) or "last_finished_at" not in body:
        raise _Bad(Trouble.ELSEWHERE, "something else than Paceline answers there: its JSON is not the state of the job", status)
    waits = f"{pending.get('due', 0)} due, {pending.get('waiting', 0)} waiting"
    if body.get("last_error"):
        raise _Bad(Trouble.UNHEALTHY, http.scrub(f"its last run failed: {body['last_error']} ({waits})", [token]), status)
    if body.get("running"):
        return f"running now; {waits}", status, None
    ended = _moment(body["last_finished_at"])
    if ended is None:
        return f"it has never run; {waits}", status, Trouble.DEGRADED
    late = now - ended > timedelta(minutes=settings.RETRY_WORKER_STALE_MINUTES)
    return f"last run {spoken(now - ended)} ago; {waits}", status, Trouble.DEGRADED if late else None


def _moment(text: Any) -> datetime | None:
    """ISO 8601 with its zone, as Paceline writes it."""
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else None
