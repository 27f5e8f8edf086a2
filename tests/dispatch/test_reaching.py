"""Numbers that must be looked up before the first message: asked once, at the pace of a message, believed for a while, never guessed."""

from datetime import timedelta
from typing import ClassVar

import pytest

from campaigns import transitions
from campaigns.models import Campaign
from dispatch import reaching
from dispatch.models import Attempt, DispatchLog, KnownAddress, Lane
from sessions_app.providers.base import Deadline, ErrorCode, Reach, Resolution
from tests.dispatch.conftest import START, make_ready, statuses
from tests.factories import make_campaign, make_log, make_run, make_session, make_step
from tests.fakes import FakeProvider

OLD, NEW = "5562987654321@c.us", "556287654321@c.us"


class Resolving(FakeProvider):
    """Knows everybody under another address, unless the script says otherwise."""

    key = "resolving"
    address_kind = "any"
    answers_to: ClassVar[dict[str, Resolution | Exception]] = {}
    asked: ClassVar[list[str]] = []

    def needs_resolving(self, address: str) -> bool:
        return not address.startswith("group")

    def resolve_address(self, address: str, deadline: Deadline) -> Resolution:
        self.asked.append(address)
        answer = self.answers_to.get(address, Resolution(Reach.FOUND, f"real-{address}"))
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def resolving(fake, settings):
    settings.CHANNELS = {**settings.CHANNELS, "resolving": "tests.dispatch.test_reaching.Resolving"}
    Resolving.answers_to.clear()
    Resolving.asked.clear()
    return Resolving


def started(people: int = 1) -> Campaign:
    campaign = make_ready(people=people, session=make_session(channel="resolving", checked_at=START))
    return transitions.start(campaign.pk, by="ana", now=START)


def addresses(campaign: Campaign) -> list[str]:
    return list(DispatchLog.objects.filter(campaign=campaign).order_by("pk").values_list("address", flat=True))


@pytest.mark.django_db
def test_it_is_asked_first_and_the_message_follows_after_a_wait_to_where_it_said(resolving, drive):
    campaign = started()
    drive.once()
    (imported,) = addresses(campaign) or [None]
    assert (resolving.asked, resolving.calls, statuses(campaign)) == ([imported], [], ["PENDING"])
    assert Lane.objects.get().next_send_at >= drive.now + timedelta(seconds=8)  # the check was this turn's message
    drive.until_done()
    assert [call.address for call in resolving.calls] == [f"real-{imported}"]
    assert statuses(campaign) == ["SENT"]
    assert addresses(campaign) == [imported]  # what people imported is what they see
    assert resolving.asked == [imported]


@pytest.mark.django_db
def test_it_is_asked_once_for_all_campaigns(resolving, drive):
    first = started()
    drive.until_done()
    second = make_ready(people=0, session=first.session)
    second.recipients.create(address=first.recipients.get().address, name="Ana", order=0)
    transitions.start(second.pk, by="ana", now=drive.now)
    drive.until_done()
    assert len(resolving.asked) == 1
    assert len(resolving.calls) == 2


@pytest.mark.django_db
def test_nobody_there_is_an_invalid_recipient_and_nothing_is_sent(resolving, drive):
    campaign = started()
    resolving.answers_to[campaign.recipients.get().address] = Resolution(Reach.NOT_FOUND)
    drive.until_done()
    assert (resolving.calls, statuses(campaign)) == ([], ["FAILED"])
    assert DispatchLog.objects.get().error_code == ErrorCode.INVALID_RECIPIENT


@pytest.mark.django_db
@pytest.mark.parametrize("answer", [Resolution(Reach.UNKNOWN, detail="502"), RuntimeError("a bug")], ids=["unknown", "bug"])
def test_what_could_not_be_asked_is_never_taken_for_nobody(resolving, drive, answer):
    campaign = started()
    imported = campaign.recipients.get().address
    resolving.answers_to[imported] = answer
    drive.until_done()
    assert [call.address for call in resolving.calls] == [imported]
    assert statuses(campaign) == ["SENT"]


@pytest.mark.django_db
def test_a_throttled_check_cools_the_lane_down_and_is_asked_again(resolving, drive):
    campaign = started()
    imported = campaign.recipients.get().address
    resolving.answers_to[imported] = Resolution(Reach.UNKNOWN, code=ErrorCode.RATE_LIMIT, retry_after=timedelta(seconds=900))
    drive.once()
    assert Lane.objects.get().next_send_at >= drive.now + timedelta(seconds=900)
    assert not KnownAddress.objects.exists()
    del resolving.answers_to[imported]
    drive.until_done()
    assert statuses(campaign) == ["SENT"]


@pytest.mark.django_db
def test_a_session_that_is_away_pauses_and_nobody_is_marked(resolving, drive):
    campaign = started()
    resolving.answers_to[campaign.recipients.get().address] = Resolution(Reach.UNKNOWN, code=ErrorCode.DISCONNECTED, detail="no session")
    drive.once()
    campaign.refresh_from_db()
    assert (campaign.status, statuses(campaign)) == (Campaign.Status.PAUSED, ["PENDING"])
    assert not KnownAddress.objects.exists()


@pytest.mark.django_db
def test_two_numbers_of_one_account_get_one_message(resolving, drive):
    campaign = started(people=2)
    for address in campaign.recipients.values_list("address", flat=True):
        resolving.answers_to[address] = Resolution(Reach.FOUND, "the same")
    drive.until_done()
    assert [call.address for call in resolving.calls] == ["the same"]
    assert sorted(statuses(campaign)) == ["FAILED", "SENT"]


@pytest.mark.django_db
def test_of_two_numbers_of_one_account_that_are_sent_to_at_once_one_gets_it(resolving):
    """On a metered lane both may be on their way together: each must not give way to the other."""
    run = make_run(make_step(make_campaign(session=make_session(channel="resolving"))))
    rows = [make_log(run, address=address, status="SENDING", attempt=1, token=1, claimed_at=START) for address in (OLD, NEW)]
    known = reaching.Known(Reach.FOUND, NEW)
    for address in (OLD, NEW):
        reaching.remember("resolving", address, Resolution(Reach.FOUND, NEW), now=START)
    refused = [reaching.refusal("resolving", row, known) for row in rows]
    assert refused[0] is None
    assert refused[1] is not None and refused[1].code == ErrorCode.INVALID_RECIPIENT


@pytest.mark.django_db
def test_groups_are_not_asked_about(resolving, drive):
    campaign = started()
    campaign.recipients.update(address="group-1")
    drive.until_done()
    assert (resolving.asked, [call.address for call in resolving.calls]) == ([], ["group-1"])


@pytest.mark.django_db
@pytest.mark.parametrize(("reach", "days"), [(Reach.FOUND, 90), (Reach.NOT_FOUND, 7), (Reach.UNKNOWN, 1 / 24)])
def test_nothing_is_believed_for_ever(reach, days):
    reaching.remember("resolving", OLD, Resolution(reach, NEW if reach == Reach.FOUND else ""), now=START)
    assert reaching.look_up("resolving", OLD, now=START + timedelta(days=days)) is not None
    assert reaching.look_up("resolving", OLD, now=START + timedelta(days=days, seconds=1)) is None
    assert reaching.look_up("waha", OLD, now=START) is None


@pytest.mark.django_db
def test_a_check_is_kept_as_an_attempt_that_was_no_message(resolving, drive):
    campaign = started()
    drive.until_done()
    outcomes = list(Attempt.objects.filter(log__campaign=campaign).order_by("pk").values_list("outcome", flat=True))
    assert outcomes == ["CHECKED", "ACCEPTED"]
