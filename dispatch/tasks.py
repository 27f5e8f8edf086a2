"""What the q-cluster does on schedule. A host without a long-running service can drive the engine here: ENGINE_DRIVER=schedule."""

from datetime import timedelta
from random import Random

from django.conf import settings
from django.db.models import Q
from django.db.models.functions import Now

from dispatch import lanes, recovery
from dispatch.engine import Engine
from dispatch.loop import Loop, start_heart
from dispatch.models import Heartbeat
from dispatch.stopping import StopAfter

DRIVE_EVERY = timedelta(minutes=1)
SCHEDULERS_ARE_BACK_WITHIN = timedelta(seconds=10)  # of the return of the database
DRIVES_FOR = timedelta(seconds=50)  # shorter than the schedule's minute: the next drive finds this one gone
HEARTBEATS_ARE_KEPT_FOR = timedelta(days=7)


def recover() -> dict[str, int]:
    """Every few minutes; the same as `manage.py recover_stuck`, but not right after a start of the database.

    Over an outage every scheduler was silent; whoever looked first would take the living for dead and pause everything.
    """
    if lanes.up_for() < SCHEDULERS_ARE_BACK_WITHIN:
        return recovery.Recovered().as_dict()
    return recovery.recover_stuck().as_dict()


def drive() -> str:
    """One turn of the engine, through the same loop and with the same heartbeat as `manage.py run_scheduler`."""
    if settings.ENGINE_DRIVER != "schedule":
        return "left to run_scheduler (ENGINE_DRIVER=service)"
    heart = start_heart(Heartbeat.Kind.SCHEDULE, interval=DRIVE_EVERY)
    loop = Loop(heart=heart, engine=Engine(owner=heart.pk, rng=Random()), stop=StopAfter(DRIVES_FOR.total_seconds()))
    code = loop.run()
    return "driven" if code == 0 else "driven; some answers could not be saved"


def keep_house() -> int:
    """Daily: heartbeats of processes that are long gone. Returns how many were removed."""
    gone = Q(stopped_at__isnull=False) | Q(recovered_at__isnull=False)
    return Heartbeat.objects.filter(gone, beat_at__lt=Now() - HEARTBEATS_ARE_KEPT_FOR).delete()[0]
