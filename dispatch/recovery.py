"""What a dead process left behind. Its in-flight messages become UNCONFIRMED, never PENDING; its campaigns are paused; somebody is told."""

import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db.models.functions import Now

from campaigns import transitions
from campaigns.models import Campaign, CampaignStep
from campaigns.transitions import Refused
from dispatch import lanes, verification
from dispatch.alerts import alert
from dispatch.models import Heartbeat
from dispatch.providers import Providers
from dispatch.verification import Conclusion, VerifyPolicy
from sessions_app.clock import database_now
from sessions_app.providers.base import Deadline

VERIFYING_TAKES_AT_MOST = timedelta(seconds=60)
LOST_REASON = "the process that sent it stopped before it could say what happened"
PAUSE_REASON = "paused by recovery: a process died while it was sending"


def send_deadline() -> timedelta:
    """From before the claim to the last moment at which a call may still be running."""
    return timedelta(seconds=settings.SEND_DEADLINE_SECONDS)


def lease() -> timedelta:
    """Longer than any call and the settle after it: two deadlines and half a minute."""
    return 2 * send_deadline() + timedelta(seconds=30)


@dataclass
class Recovered:
    """What one recovery did; the names are those of `recover_stuck --json`."""

    campaigns_paused: int = 0
    steps_paused: int = 0
    logs_verified: int = 0
    logs_unconfirmed: int = 0
    logs_requeued: int = 0
    sessions: set[int] = field(default_factory=set)

    def as_dict(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if name != "sessions"}


def host_identity() -> str:
    """This boot of this machine, and this pid namespace: only where both are equal does a pid mean the same process."""
    parts = [socket.gethostname()]
    boot_id, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if boot_id.exists():
        parts = [boot_id.read_text().strip()]
    if namespace.exists():
        parts.append(str(namespace.readlink()))
    return "/".join(parts)


def is_gone(heartbeat: Heartbeat) -> bool:
    """Its pid no longer exists on this host. Proof of death, but only here."""
    if heartbeat.host_identity != host_identity() or heartbeat.pid == os.getpid():
        return False
    try:
        os.kill(heartbeat.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def dead_heartbeats(now: datetime) -> list[Heartbeat]:
    """Not stopped cleanly, not seen to yet, and silent for three intervals or gone from this host."""
    unstopped = Heartbeat.objects.filter(stopped_at__isnull=True, recovered_at__isnull=True)
    return [beat for beat in unstopped if now - beat.beat_at > 3 * beat.interval or is_gone(beat)]


def recover_lanes(
    *, verify_after: timedelta, lease_time: timedelta | None = None, dead_owners: Sequence[uuid.UUID] = (), now: datetime | None = None
) -> Recovered:
    """Step one, each pass: expired leases, and those of owners that are known to be dead."""
    lost = lanes.recover(
        lease=lease_time if lease_time is not None else lease(),
        verify_after=verify_after,
        reason=LOST_REASON,
        dead_owners=dead_owners,
        now=now,
    )
    report = Recovered(sessions={entry.session_id for entry in lost})
    report.logs_unconfirmed = sum(entry.log_id is not None for entry in lost)
    for campaign_id in sorted({entry.campaign_id for entry in lost if entry.log_id is not None and entry.campaign_id is not None}):
        _pause(campaign_id, report)
    if report.logs_unconfirmed:
        alert("work recovered after a crash", messages=report.logs_unconfirmed, campaigns_paused=report.campaigns_paused)
    return report


def recover_stuck(*, policy: VerifyPolicy | None = None, believes_silence: bool = True, now: datetime | None = None) -> Recovered:
    """On deploy, as often as you like. Beside live schedulers it touches nothing of theirs.

    When no scheduler is alive and one died, every RUNNING campaign is paused: nobody restarts a crashed run silently.
    RECOVERY_POLICY=continue limits that to the campaigns whose own message became UNCONFIRMED. Without `believes_silence` nobody is taken
    for dead for being silent: after an outage of the database everybody was.
    """
    policy = policy or VerifyPolicy()
    moment = now or database_now()
    dead = dead_heartbeats(moment)
    gone = [beat.pk for beat in dead if is_gone(beat)]
    report = recover_lanes(verify_after=timedelta(0), dead_owners=gone, now=now)
    if not believes_silence:
        dead = []
    if dead and not somebody_lives(moment) and settings.RECOVERY_POLICY == "pause":
        for campaign_id in Campaign.objects.running().values_list("pk", flat=True):
            _pause(campaign_id, report)
        if report.campaigns_paused:
            alert("campaigns paused after a crash", campaigns_paused=report.campaigns_paused)
    Heartbeat.objects.filter(pk__in=[beat.pk for beat in dead]).update(recovered_at=Now())
    _verify(report, policy, now)
    return report


def _verify(report: Recovered, policy: VerifyPolicy, now: datetime | None) -> None:
    """Ask about what is due, one after the other, for a bounded time: a deploy must not wait for a provider that hangs."""
    providers, budget = Providers(), Deadline(VERIFYING_TAKES_AT_MOST)
    while not budget.passed and (questions := verification.take_due(providers, policy, limit=1, now=now)):
        for question in questions:
            match verification.conclude(question, question.ask(), policy, now=now):
                case Conclusion.PRESENT:
                    report.logs_verified += 1
                case Conclusion.REQUEUED:
                    report.logs_requeued += 1


def somebody_lives(now: datetime) -> bool:
    return any(not is_gone(beat) for beat in Heartbeat.objects.alive(now))


def _pause(campaign_id: int, report: Recovered) -> None:
    steps = CampaignStep.objects.filter(campaign=campaign_id, status=CampaignStep.Status.RUNNING).count()
    try:
        transitions.pause(campaign_id, reason=PAUSE_REASON)
    except Refused:
        return  # a person was faster, or it is not running any more: nothing to pause
    report.campaigns_paused += 1
    report.steps_paused += steps


def take_over() -> None:
    """At the start of a driver: free at once what processes that are gone from this host held, and note that their death was seen to."""
    dead = dead_heartbeats(database_now())
    recover_lanes(verify_after=VerifyPolicy().first, dead_owners=[beat.pk for beat in dead if is_gone(beat)])
    Heartbeat.objects.filter(pk__in=[beat.pk for beat in dead]).update(recovered_at=Now())
