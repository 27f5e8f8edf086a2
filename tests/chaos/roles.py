"""What the forked processes of a chaos run do: set up, send, operate, recover, check."""

import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any

from django.core.management import call_command
from django.db import connection
from django.db.models import F

from campaigns import transitions
from campaigns.models import Campaign, CampaignStep, Recipient
from dispatch import doctor, lanes, recovery
from dispatch import transitions as log_transitions
from dispatch.lanes import Lost
from dispatch.loop import run_scheduler
from dispatch.models import DispatchLog
from dispatch.scheduler import DATABASE_AWAY
from dispatch.stopping import StopFlag
from sessions_app.checking import check_session
from sessions_app.models import Session
from tests.chaos import plan, scale
from tests.dispatch.invariants import assert_sum_rule

S = Campaign.Status


def prepare(order: dict[str, Any]) -> None:
    """Sessions, campaigns and people, none of them started. Every person has a number of their own over the whole run."""
    number = plan.FIRST_NUMBER
    for lane in order["lanes"]:
        where = {"base_url": order["sandbox"], "session": lane["name"], "engine": "NOWEB", "check_numbers": False}
        if lane["kind"] == "metered":
            where["rate"] = lane["rate"]
        session = Session.objects.create(name=lane["name"], channel=plan.CHANNELS[lane["kind"]], settings=where)
        for turn in range(lane["campaigns"]):
            campaign = Campaign.objects.create(name=f"{lane['name']} {turn}", session=session, safe_hours=Campaign.SafeHours.OFF)
            CampaignStep.objects.create(campaign=campaign, text="Hello {{ name }}")
            people = [
                Recipient(campaign=campaign, address=f"{number + n}@c.us", name=f"Person {n}", order=n) for n in range(lane["people"])
            ]
            Recipient.objects.bulk_create(people)
            number += lane["people"]


def schedule(order: dict[str, Any]) -> int:
    """As manage.py run_scheduler, with the scaled engine."""
    scale.scale()
    if order.get("naive"):
        be_naive()
    stop = StopFlag()
    stop.install()
    return run_scheduler(stop, interval=0.2, make_engine=scale.make_engine)


def be_naive() -> None:
    """The recovery that looks so natural: what a dead process had in flight goes back to PENDING."""
    honest = lanes.recover

    def back_to_pending(**arguments: Any) -> list[Lost]:
        lost = honest(**arguments)
        for entry in lost:
            if entry.log_id is not None:
                try:
                    log_transitions.send_again(entry.log_id, by="a recovery that does not ask")
                    DispatchLog.objects.filter(pk=entry.log_id).update(available_at=F("created_at"))  # its old place in the queue
                except transitions.Refused:
                    pass
        return lost

    lanes.recover = back_to_pending


def recover(order: dict[str, Any]) -> None:
    scale.scale()
    if order.get("naive"):
        be_naive()
    try:
        recovery.recover_stuck(policy=scale.Patient())
    except DATABASE_AWAY:
        pass  # the operator would try again


def operate(order: dict[str, Any]) -> None:
    """A person who starts and resumes what stands still, and who, unless things are calm, pauses at random and stops one campaign."""
    rng = Random(order["seed"])
    while True:
        try:
            for campaign_id, status, session_id in list(Campaign.objects.values_list("pk", "status", "session_id")):
                if status in {S.PAUSED, S.DRAFT} and (order["calm"] or rng.random() < 0.8):
                    go_on(campaign_id, status, session_id)
            if not order["calm"] and rng.random() < 0.04:
                running = list(Campaign.objects.running().values_list("pk", flat=True))
                if running:
                    attempt(transitions.pause, rng.choice(running), reason="paused by the operator")
            if stop_now(order["stops"]):
                attempt(transitions.stop, order["stops"], by="the operator")
        except DATABASE_AWAY:
            connection.close()
        time.sleep(rng.uniform(0.02, 0.1))


def begin(order: dict[str, Any]) -> None:
    """Every campaign is started, once."""
    for campaign_id in Campaign.objects.order_by("pk").values_list("pk", flat=True):
        transitions.start(campaign_id, by="the operator")


def go_on(campaign_id: int, status: str, session_id: int) -> None:
    session = Session.objects.get(pk=session_id)
    if Campaign.objects.running().filter(session=session_id).exists():
        return  # the other campaign has its turn
    if session.status != Session.Status.CONNECTED:
        check_session(session)
    attempt(transitions.resume if status == S.PAUSED else transitions.start, campaign_id, by="the operator")


def attempt(verb: Callable[..., Any], campaign_id: int, **arguments: Any) -> None:
    try:
        verb(campaign_id, **arguments)
    except transitions.Refused:
        pass  # somebody or something was faster


def stop_now(campaign_id: int) -> bool:
    """When a third of it has gone out."""
    campaign = Campaign.objects.filter(pk=campaign_id).exclude(status__in=[S.FAILED, S.COMPLETED]).first()
    sent = DispatchLog.objects.filter(campaign=campaign_id, status=DispatchLog.Status.SENT).count()
    return campaign is not None and sent * 3 >= campaign.recipients.count()


def check(order: dict[str, Any]) -> int:
    """The invariants that are counted from the rows: those of `manage.py doctor`, with the times of this run."""
    assert_sum_rule()
    floor, lease = timedelta(seconds=plan.FLOOR), timedelta(seconds=plan.LEASE)
    broken = [finding for finding in doctor.examine(everything=True, floor=floor, lease_time=lease) if finding.is_broken]
    for finding in broken:
        sys.stdout.write(f"{finding.check.holds} Not so: {'; '.join(finding.examples)}\n")
    return 1 if broken else 0


def command(order: dict[str, Any]) -> None:
    words: Sequence[str] = order["command"]
    call_command(*words, stdout=sys.stdout, stderr=sys.stderr)


ROLES: dict[str, Callable[[dict[str, Any]], int | None]] = {
    "prepare": prepare,
    "scheduler": schedule,
    "recover": recover,
    "begin": begin,
    "operator": operate,
    "check": check,
    "command": command,
}
