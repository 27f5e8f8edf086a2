"""Rows for tests: plain functions with defaults. Names are unique; statuses are set directly, which only tests may do."""

import itertools
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from campaigns.models import Campaign, CampaignStep, Recipient
from dispatch.models import DispatchLog, Lane, Run
from sessions_app.models import Session

_numbers = itertools.count(1)
_STARTED = {Campaign.Status.RUNNING, Campaign.Status.PAUSED, Campaign.Status.COMPLETED, Campaign.Status.FAILED}


def make_session(**fields: Any) -> Session:
    """A connected session on the mock channel, checked just now. `credentials={...}` are sealed as the admin does it."""
    credentials = fields.pop("credentials", None)
    values = {
        "name": f"session {next(_numbers)}",
        "channel": "mock",
        "status": Session.Status.CONNECTED,
        "checked_at": timezone.now(),
        "time_zone": "UTC",
        **fields,
    }
    session = Session(**values)
    if credentials:
        session.credentials = credentials
    session.save()
    return session


def make_campaign(**fields: Any) -> Campaign:
    """A draft without steps and people. SCHEDULED is due a minute ago, unless `due_at` says otherwise."""
    status = fields.get("status", Campaign.Status.DRAFT)
    now = timezone.now()
    values: dict[str, Any] = {"name": f"campaign {next(_numbers)}", "time_zone": "UTC"}
    if "session" not in fields and "session_id" not in fields:
        values["session"] = make_session()
    if status == Campaign.Status.SCHEDULED:
        values["due_at"] = now - timedelta(minutes=1)
    if status in _STARTED:
        values |= {"started_at": now, "epoch": 1}
    return Campaign.objects.create(**{**values, **fields})


def make_step(campaign: Campaign | None = None, **fields: Any) -> CampaignStep:
    """The next step of the campaign, a text that needs nothing of the recipient."""
    campaign = campaign or make_campaign()
    values = {"order": campaign.steps.count() + 1, "text": "Hello", **fields}
    return CampaignStep.objects.create(campaign=campaign, **values)


def make_recipient(campaign: Campaign | None = None, **fields: Any) -> Recipient:
    return make_recipients(1, campaign, **fields)[0]


def make_recipients(count: int, campaign: Campaign | None = None, **fields: Any) -> list[Recipient]:
    """People with fictitious numbers, in order after those that are there. Beyond a hundred in one campaign they are hidden ids (@lid)."""
    campaign = campaign or make_campaign()
    first = campaign.recipients.count()
    people = []
    for order in range(first, first + count):
        address = f"120255501{order:02}@c.us" if order < 100 else f"{100_000_000_000_000 + order}@lid"
        values = {"address": address, "address_as_imported": address, "name": f"Person {order + 1}", "order": order, **fields}
        people.append(Recipient(campaign=campaign, **values))
    return Recipient.objects.bulk_create(people)


def make_run(step: CampaignStep | None = None, **fields: Any) -> Run:
    """A live run of the step with the step's message frozen in it, and no rows yet."""
    step = step or make_step()
    values: dict[str, Any] = {
        "campaign": step.campaign,
        "number": step.runs.count() + 1,
        "message": asdict(step.message),
        **fields,
    }
    return Run.objects.create(step=step, **values)


def make_log(run: Run | None = None, **fields: Any) -> DispatchLog:
    """A waiting message of the run to a new recipient, counted as planned. Whatever else the status needs is filled in."""
    run = run or make_run()
    status = fields.get("status", DispatchLog.Status.PENDING)
    now = timezone.now()
    values: dict[str, Any] = {"campaign": run.campaign, "session": run.campaign.session, "step": run.step, "run": run}
    if "recipient" not in fields and "recipient_id" not in fields:
        values["recipient"] = make_recipient(run.campaign)
    recipient = fields.get("recipient", values.get("recipient"))
    values["address"] = recipient.address if recipient else "12025550199@c.us"
    if status not in {DispatchLog.Status.PENDING, DispatchLog.Status.SKIPPED}:
        values |= {"attempt": 1, "token": next(_numbers), "claimed_at": now, "body": run.step.text}
    if status == DispatchLog.Status.SENT:
        values |= {"sent_at": now, "provider_message_id": f"id-{next(_numbers)}"}
    if status == DispatchLog.Status.UNCONFIRMED:
        values |= {"unconfirmed_at": now, "verify_at": now}
    log = DispatchLog.objects.create(**{**values, **fields})
    run.planned += 1
    counter = str(status).lower()
    if counter in {"sent", "failed", "unconfirmed", "skipped"}:
        setattr(run, counter, getattr(run, counter) + 1)
    run.save()
    return log


def make_unconfirmed(count: int, run: Run | None = None, **fields: Any) -> Run:
    """So many at once, to nobody in particular, asked about for the last time an hour ago. Returns their run."""
    run = run or make_run(rows_complete=True)
    now = timezone.now()
    values: dict[str, Any] = {"attempt": 1, "token": next(_numbers), "claimed_at": now, "verifications": 7, "status": "UNCONFIRMED"}
    values |= {"unconfirmed_at": now - timedelta(hours=1), "error_code": "UNCONFIRMED", "body": run.step.text, **fields}
    first = DispatchLog.objects.create(
        campaign=run.campaign, session=run.campaign.session, step=run.step, run=run, address="0@lid", **values
    )
    columns = {str(field.column): str(field.column) for field in DispatchLog._meta.local_concrete_fields if not field.primary_key}
    copied = columns | {"address": "number || '@lid'", "client_ref": "gen_random_uuid()"}
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO dispatch_dispatchlog ({', '.join(columns)}) SELECT {', '.join(copied.values())} "
            "FROM dispatch_dispatchlog, generate_series(1, %s) number WHERE id = %s",
            [count - 1, first.pk],
        )
    counter = str(values["status"]).lower()
    run.planned += count
    setattr(run, counter, getattr(run, counter) + count)
    run.save()
    return run


def make_lane(session: Session | None = None, **fields: Any) -> Lane:
    """A human lane, open and due."""
    values = {"is_open": True, "next_send_at": timezone.now() - timedelta(seconds=1), **fields}
    return Lane.objects.create(session=session or make_session(), **values)
