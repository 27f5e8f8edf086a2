"""Whether those who send, tidy up and try again are alive: by the same rules as /api/health, but without the site."""

from collections.abc import Iterator

from django.conf import settings

from dispatch import health
from dispatch.health import Component, Status
from dispatch.models import Heartbeat
from dispatch.readiness.findings import Check, Verdict, error, ok, warning
from sessions_app.clock import database_now

START = {
    "service": "systemctl start paceline-scheduler, or manage.py run_scheduler",
    "schedule": "systemctl start paceline-worker, or manage.py worker",
}
MIGRATE_FIRST = warning("Not looked at: some migrations are not applied.", "manage.py migrate")


def component(name: str) -> Component | None:
    """None while the tables are not those of this version."""
    return next((part for part in health.look() if part.name == name), None)


def scheduler() -> Iterator[Verdict]:
    found = component("scheduler")
    if found is None:
        yield MIGRATE_FIRST
    elif found.status is not Status.OK:
        yield error(f"Scheduler: {found.detail}.", START[settings.ENGINE_DRIVER])
    else:
        yield from _versions()
        yield ok(f"Scheduler: {found.detail}.")


def _versions() -> Iterator[Verdict]:
    for beat in Heartbeat.objects.alive(database_now()).exclude(version=settings.VERSION):
        sentence = f"The scheduler on {beat.host} (process {beat.pid}) runs version {beat.version}, and this is {settings.VERSION}."
        yield warning(sentence, "systemctl restart paceline-scheduler paceline-worker")


def background_tasks() -> Iterator[Verdict]:
    found = component("background_tasks")
    if found is None:
        yield MIGRATE_FIRST
    elif found.status is not Status.OK:
        sentence = f"Background tasks: {found.detail}. Meanwhile nobody watches, tidies up or tries again."
        yield error(sentence, "systemctl start paceline-worker, or manage.py worker; its log: journalctl -u paceline-worker")
    else:
        yield ok(f"Background tasks: {found.detail}.")


def retry_job() -> Iterator[Verdict]:
    found = component("retry_worker")
    if found is None:
        yield MIGRATE_FIRST
    elif found.status is not Status.OK:
        yield warning(f"Retry job: {found.detail}.", "manage.py campaign_retry runs it now, and says what goes wrong.")
    else:
        yield ok(f"Retry job: {found.detail}.")


CHECKS = [
    Check("scheduler", scheduler, needs_database=True),
    Check("background-tasks", background_tasks, needs_database=True),
    Check("retry-job", retry_job, needs_database=True),
]
