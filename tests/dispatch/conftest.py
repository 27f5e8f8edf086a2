from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID, uuid4

import pytest

from campaigns.models import Campaign
from dispatch.engine import Engine
from dispatch.models import DispatchLog, Lane
from dispatch.scheduler import run_until_idle
from dispatch.verification import VerifyPolicy
from tests.dispatch.invariants import broken
from tests.factories import make_campaign, make_recipients, make_session, make_step
from tests.fakes import FakeProvider

START = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)


@pytest.fixture
def fake(settings) -> Iterator[type[FakeProvider]]:
    settings.CHANNELS = {**settings.CHANNELS, "fake": "tests.fakes.FakeProvider", "fake_metered": "tests.fakes.FakeMetered"}
    FakeProvider.reset()
    yield FakeProvider
    FakeProvider.reset()


@dataclass
class Drive:
    """An engine on a clock of its own: `until_done` jumps from one due moment to the next, so hours of pacing take no time."""

    engine: Engine
    sent_at: list[datetime]

    @property
    def now(self) -> datetime:
        assert self.engine.now is not None
        return self.engine.now

    def forward(self, by: timedelta | float = 0) -> None:
        self.engine.now = self.now + (by if isinstance(by, timedelta) else timedelta(seconds=by))

    def to(self, moment: datetime) -> None:
        self.engine.now = moment

    def once(self) -> None:
        """Everything that is due at this moment."""
        before = len(FakeProvider.calls)
        run_until_idle(self.engine)
        self.sent_at += [self.now] * (len(FakeProvider.calls) - before)

    def next_moment(self) -> datetime | None:
        lanes = Lane.objects.filter(is_open=True, campaign__status=Campaign.Status.RUNNING).values_list("next_send_at", flat=True)
        due = Campaign.objects.filter(status=Campaign.Status.SCHEDULED).values_list("due_at", flat=True)
        later = [moment for moment in (*lanes, *due) if moment and moment > self.now]
        return min(later, default=None)

    def until_done(self, *, steps: int = 500) -> None:
        for _ in range(steps):
            self.once()
            moment = self.next_moment()
            if moment is None:
                return
            self.engine.now = moment
        raise AssertionError("never done")


@pytest.fixture
def drive() -> Iterator[Drive]:
    engine = make_engine()
    yield Drive(engine, [])
    engine.close()
    assert broken(now=engine.now, lease_time=engine.lease) == []


def make_engine(owner: UUID | None = None, **changes) -> Engine:
    values = {"rng": Random(1), "now": START, "deadline": timedelta(seconds=30), "lease": timedelta(seconds=1), "verify": VerifyPolicy()}
    return Engine(owner=owner or uuid4(), **values | changes)


@pytest.fixture
def campaign(db, fake) -> Campaign:
    """Three people, one step, ready to start on a connected session."""
    return make_ready(people=3)


def make_ready(*, people: int = 3, channel: str = "fake", session=None, **changes) -> Campaign:
    session = session or make_session(channel=channel, checked_at=START)
    campaign = make_campaign(session=session, **{"safe_hours": Campaign.SafeHours.OFF, **changes})
    make_step(campaign, text="Hello {{ name }}")
    make_recipients(people, campaign)
    return campaign


def statuses(campaign: Campaign) -> list[str]:
    return list(DispatchLog.objects.filter(campaign=campaign).order_by("pk").values_list("status", flat=True))
