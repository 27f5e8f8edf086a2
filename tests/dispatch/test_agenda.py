"""A pass that has nothing to do finds that out with one statement; everything there is to do is found."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from bench.at_a_million import fill
from campaigns import transitions
from dispatch import agenda
from dispatch.engine import Engine
from dispatch.models import DispatchLog, Lane, Run
from dispatch.scheduler import PassReport, plan, run_pass
from dispatch.verification import VerifyPolicy
from sessions_app.clock import database_now
from tests.dispatch.conftest import START, make_ready
from tests.dispatch.test_health import assert_no_scan

pytestmark = pytest.mark.django_db
GRACE = VerifyPolicy().grace


def test_a_pass_with_nothing_to_do_costs_three_statements(drive, django_assert_num_queries):
    campaign = make_ready(channel="mock", people=3)
    transitions.start(campaign.pk, by="ana", now=START)
    drive.once()
    assert Lane.objects.get().next_send_at > drive.now
    drive.engine.now = None
    Lane.objects.update(next_send_at=database_now() + timedelta(minutes=1))
    with django_assert_num_queries(3):  # the time, what there is to plan, the claim
        run_pass(drive.engine)
    drive.engine.now = START


def test_times_before_and_after_the_moment_move_with_it():
    campaign = make_ready(people=1)
    run = Run.objects.create(campaign=campaign, step=campaign.steps.get(), number=1, rows_complete=True, planned=1)
    common = {"campaign": campaign, "session": campaign.session, "step": run.step, "run": run}
    log = DispatchLog.objects.create(**common, address="1@c.us", status="UNCONFIRMED", verify_at=START)
    for late in (timedelta(seconds=1), timedelta(days=4000)):
        assert agenda.ASK not in agenda.look(START - late, grace=GRACE)
        assert agenda.ASK in agenda.look(START + late, grace=GRACE)
    type(campaign).objects.update(unconfirmed_default="GIVE_UP")
    DispatchLog.objects.filter(pk=log.pk).update(verify_at=None, unconfirmed_at=START)
    assert "messages left to a default" not in agenda.look(START + GRACE - timedelta(seconds=1), grace=GRACE)
    assert "messages left to a default" in agenda.look(START + GRACE, grace=GRACE)


def test_a_lane_whose_trouble_was_not_seen_to_is_seen_to_though_nothing_is_due_on_it(drive):
    """A message brought the trouble, and the process died before it could pause the campaign."""
    campaign = make_ready(channel="mock", people=2)
    transitions.start(campaign.pk, by="ana", now=START)
    drive.once()
    DispatchLog.objects.pending().update(available_at=START + timedelta(days=1))
    Lane.objects.update(trouble="five failures in a row", trouble_code="TRANSIENT", is_open=False)
    run_pass(drive.engine)
    campaign.refresh_from_db()
    assert (campaign.status, campaign.status_reason) == ("PAUSED", "paused: five failures in a row")


def test_a_lane_that_was_left_open_is_shut(drive):
    campaign = make_ready(channel="mock", people=1)
    Lane.objects.create(session=campaign.session, campaign=campaign, is_open=True, next_send_at=START + timedelta(days=1))
    run_pass(drive.engine)
    assert not Lane.objects.get().is_open


def test_nothing_at_all_is_nothing_to_do():
    assert agenda.look(START, grace=GRACE) == set()


@pytest.mark.parametrize("swept", [False, True], ids=["all waits", "after a sweep"])
def test_it_never_reads_the_ledger_from_end_to_end(swept):
    """20,000 rows; bench/at_a_million.py measures a million. After a sweep the statistics still tell of what was swept."""
    fill(20, running=5, heartbeats=2, events=2)
    if swept:
        DispatchLog.objects.pending().update(kind="MESSAGE")
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE dispatch_dispatchlog")
    engine = Engine(owner=uuid4())
    for _ in range(3):
        plan(engine, PassReport())
    engine.close()
    assert DispatchLog.objects.pending().count() == (0 if swept else 2500)
    with CaptureQueriesContext(connection) as captured:
        assert agenda.look(database_now(), grace=GRACE) == set()
    assert_no_scan([query["sql"] for query in captured.captured_queries])
