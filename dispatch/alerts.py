"""One place for what somebody should be told: a line in the log at ERROR, a row for the first page of the admin, and word to people.

Whoever raises an alert waits for nobody. A row is told at once, then at most once an hour, with the number of what happened meanwhile; by
whichever process comes first, over the webhook and the Apprise URLs of the settings. Told means that one of them took it.
"""

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from dispatch.models import Alert
from sessions_app.clock import database_now
from sessions_app.providers import http
from sessions_app.providers.base import Deadline

logger = logging.getLogger("paceline.alerts")

NOT_AGAIN_FOR = timedelta(hours=1)
IS_NEWS_FOR = timedelta(days=1)  # what happened before channels were configured, or while all of them failed, is not told a week later
LEASE = timedelta(minutes=5)
MOST_AT_ONCE = 20
TELLING_TAKES_AT_MOST = timedelta(seconds=45)
ONE_CALL_TAKES_AT_MOST = timedelta(seconds=10)
LONGEST_BACK_OFF = timedelta(hours=1)
LOOKED_EVERY = 5.0  # seconds
AFTER_AN_ERROR = 60.0

_SUBJECTS = {"campaign": "campaign", "session": "session", "log": "message"}  # name of the fact -> what it is; the first one counts
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def alert(kind: str, **facts: Any) -> None:
    """Never blocks and never raises: an alert must not break the sending it is about. No secrets, texts or whole phone numbers in it.

    The row is written after the commit of the transaction that this is called in; when that rolls back, the line in the log is all.
    """
    say(kind, facts)
    try:
        transaction.on_commit(partial(store, kind, facts), robust=True)
    except Exception as error:
        _could_not_store(kind, error)


def say(kind: str, facts: dict[str, Any]) -> None:
    """Only the line in the log."""
    try:
        logger.error(kind, extra=facts)
    except KeyError:  # a fact has the name of something that every line has
        logger.error(kind, extra={"facts": facts})


def store(kind: str, facts: dict[str, Any], *, told: bool = False) -> None:
    """Only the row. Never raises. With `told`, people know it already."""
    try:
        kept = {name: _plain(value) for name, value in facts.items()}
        row = Alert.objects.filter(kind=_plain(kind)[:60], subject=_subject(kept))
        happened = {"times": F("times") + 1, "last_at": Now(), "detail": _detail(kept), "facts": kept}
        if not row.update(**happened):
            Alert.objects.bulk_create([Alert(kind=_plain(kind)[:60], subject=_subject(kept), times=0)], ignore_conflicts=True)
            row.update(**happened)
        if told:
            row.update(times_told=F("times"), told_at=Now(), tell_at=Now() + NOT_AGAIN_FOR)
    except Exception as error:
        _could_not_store(kind, error)


def _could_not_store(kind: str, error: Exception) -> None:
    logger.warning("an alert could not be stored", extra={"kind": kind, "error": type(error).__name__})


def _plain(value: Any) -> Any:
    """What a JSON column takes whatever a provider or a person put into it."""
    if value is None or isinstance(value, (bool, int)):
        return value
    return str(value).replace("\0", "").encode("utf-8", "replace").decode()[:500]


def _subject(facts: dict[str, Any]) -> str:
    return next((f"{what} {facts[name]}"[:100] for name, what in _SUBJECTS.items() if facts.get(name) is not None), "")


def _detail(facts: dict[str, Any]) -> str:
    """The sentence that came with it, or the facts in words."""
    for name in ("detail", "reason"):
        if facts.get(name):
            return str(facts[name])
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in facts.items() if name not in _SUBJECTS)[:500]


# -- telling -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Notice:
    """One row on its way to people; without a `pk`, something that could not be stored."""

    kind: str
    subject: str
    detail: str
    facts: dict[str, Any]
    first_at: datetime
    last_at: datetime
    since: datetime  # when it was told last, or happened first
    times: int = 1
    times_since: int = 1
    pk: int | None = None
    leased_until: datetime | None = None
    failures: int = 0

    @classmethod
    def unstored(cls, kind: str, facts: dict[str, Any]) -> "Notice":
        now = datetime.now(UTC)
        return cls(kind, _subject(facts), _detail(facts), facts, first_at=now, last_at=now, since=now)

    @classmethod
    def of(cls, row: Alert, *, leased_until: datetime) -> "Notice":
        return cls(
            row.kind,
            row.subject,
            row.detail,
            row.facts,
            first_at=row.first_at,
            last_at=row.last_at,
            since=row.told_at or row.first_at,
            times=row.times,
            times_since=row.times - row.times_told,
            pk=row.pk,
            leased_until=leased_until,
            failures=row.failures,
        )

    @property
    def headline(self) -> str:
        return f"Paceline on {socket.gethostname()}: {self.kind}" + (f" ({self.subject})" if self.subject else "")

    @property
    def story(self) -> str:
        often = f"{self.times_since} times since {self.since.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if self.times_since > 1 else ""
        return "; ".join(part for part in (self.detail, often) if part)

    def payload(self) -> dict[str, Any]:
        """`text` is what Slack shows, so it is escaped as Slack wants it: a name that somebody typed must not call a whole channel."""
        return {
            "text": ": ".join(part for part in (self.headline, self.story) if part).translate(_HTML),
            "kind": self.kind,
            "subject": self.subject,
            "detail": self.detail,
            "times": self.times,
            "times_since": self.times_since,
            "since": self.since.isoformat(),
            "first_at": self.first_at.isoformat(),
            "last_at": self.last_at.isoformat(),
            "facts": self.facts,
            "instance": socket.gethostname(),
        }


def is_configured() -> bool:
    return bool(settings.CAMPAIGN_RETRY_ALERT_WEBHOOK_URL or settings.ALERT_URLS)


def take(now: datetime | None = None) -> list[Notice]:
    """What is to be told now, at most 20. It is the caller's for the time of a lease: nobody else is given it meanwhile."""
    if not is_configured():
        return []
    now = now or database_now()
    taken = []
    for row in Alert.objects.to_tell(now).filter(last_at__gte=now - IS_NEWS_FOR)[:MOST_AT_ONCE]:
        if Alert.objects.filter(pk=row.pk, tell_at=row.tell_at, times_told=row.times_told).update(tell_at=now + LEASE):
            taken.append(Notice.of(row, leased_until=now + LEASE))
    return taken


def tell(notices: Iterable[Notice]) -> Iterator[tuple[Notice, str]]:
    """Each with its error, or "". Touches no database. What it has no time for keeps its lease, and is told when that is over."""
    deadline = Deadline(TELLING_TAKES_AT_MOST)
    for notice in notices:
        if deadline.passed:
            return
        yield notice, send(notice)


def send(notice: Notice) -> str:
    """Over every channel; "" when one of them took it, and then the others are not tried again. Touches no database, never raises.

    The addresses may be secrets: no error and no line of the log has more of them than the scheme.
    """
    webhook = settings.CAMPAIGN_RETRY_ALERT_WEBHOOK_URL
    answers = {"webhook": _to_webhook(webhook, notice)} if webhook else {}
    for number, url in enumerate(settings.ALERT_URLS, start=1):
        answers[f"ALERT_URLS {number} ({url.partition('://')[0]})"] = _to_apprise(url, notice)
    problems = "; ".join(f"{name}: {error}" for name, error in answers.items() if error)
    if problems and not all(answers.values()):
        logger.warning("an alert was not told everywhere", extra={"kind": notice.kind, "subject": notice.subject, "error": problems})
        return ""
    return problems[:500]


def _to_webhook(url: str, notice: Notice) -> str:
    try:
        answer = http.post_json(url, notice.payload(), deadline=Deadline(ONE_CALL_TAKES_AT_MOST))
    except (http.NotSent, http.NoAnswer) as error:
        return str(error)
    except Exception as error:
        return type(error).__name__
    return "" if 200 <= answer.status < 300 else f"it answered {answer.status}"


def _to_apprise(url: str, notice: Notice) -> str:
    try:
        import apprise  # takes a while, and is of no use to most processes

        logging.getLogger("apprise").propagate = False  # its lines quote hosts and what a server answered
        # In this thread, and without a pool that the end of the process would wait for: the sockets' own time-outs bound it.
        target = apprise.Apprise(asset=apprise.AppriseAsset(async_mode=False, service_timeout=0, app_id="Paceline"))
        if not target.add(url):
            return "it cannot be used; compare it with Apprise's documentation"
        body = notice.story or notice.kind
        told = target.notify(title=notice.headline, body=body, notify_type=apprise.NotifyType.WARNING)
    except Exception as error:
        return type(error).__name__
    return "" if told else "it was not taken"


def record(notice: Notice, error: str) -> None:
    """What became of it, unless its lease ran out and it is somebody else's."""
    assert notice.pk is not None and notice.leased_until is not None
    mine = Alert.objects.filter(pk=notice.pk, tell_at=notice.leased_until)
    if error:
        again = min(timedelta(minutes=2 ** min(notice.failures, 6)), LONGEST_BACK_OFF)
        mine.update(tell_at=Now() + again, failures=F("failures") + 1, error=error[:500])
        facts = {"kind": notice.kind, "subject": notice.subject, "error": error, "again_in": again}
        logger.warning("an alert could not be told", extra=facts)
    else:
        mine.update(times_told=notice.times, told_at=Now(), tell_at=Now() + NOT_AGAIN_FOR, failures=0, error="")


def tell_waiting() -> int:
    """For a task that has the time. Returns how many were told."""
    told = 0
    for notice, error in tell(take()):
        record(notice, error)
        told += not error
    return told


class Teller:
    """Tells from a process that has something else to do: the network in a thread, the database in the thread that calls `look`."""

    def __init__(self) -> None:
        self.told_directly = False
        self._thread: threading.Thread | None = None
        self._gives_up = Deadline(timedelta(0))
        self._told: deque[tuple[Notice, str]] = deque()
        self._look_at = self._directly_at = float("-inf")

    def look(self) -> None:
        """Between two pieces of other work: a statement every few seconds. Never raises."""
        try:
            while self._told:
                record(*self._told[0])
                self._told.popleft()
            if time.monotonic() >= self._look_at and not self._is_busy():
                self._look_at = time.monotonic() + LOOKED_EVERY
                self._start(take())
        except Exception as error:
            self._look_at = time.monotonic() + AFTER_AN_ERROR
            logger.warning("alerts could not be told", extra={"error": type(error).__name__})

    def tell_directly(self, notice: Notice) -> None:
        """Past the database, which is away: at most once an hour, and again after a minute when nobody took it."""
        if is_configured() and time.monotonic() >= self._directly_at and not self._is_busy():
            self._directly_at = time.monotonic() + AFTER_AN_ERROR
            self._start([notice])

    def close(self, seconds: float = 0.5) -> None:
        """At the end of the process. A call that hangs is left behind; its row is told again when the lease is over."""
        if self._thread is not None:
            self._thread.join(seconds)
        self._look_at = float("inf")
        self.look()

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._gives_up.passed

    def _start(self, notices: list[Notice]) -> None:
        if notices:
            self._gives_up = Deadline(LEASE)
            self._thread = threading.Thread(target=self._work, args=(notices,), name="alerts", daemon=True)
            self._thread.start()

    def _work(self, notices: list[Notice]) -> None:
        for notice, error in tell(notices):
            if notice.pk is not None:
                self._told.append((notice, error))
            elif not error:
                self.told_directly = True
                self._directly_at = time.monotonic() + NOT_AGAIN_FOR.total_seconds()
