"""The lock of a job: one at a time, never longer than its end, and a record of how the last run ended."""

import os
import signal
import subprocess
import sys
import uuid
from datetime import timedelta

import pytest
from django.conf import settings as project
from django.db.models.functions import Now
from django.utils import timezone

from dispatch import jobs
from dispatch.models import Job
from tests.processes import environment, until

JOB = "counting"
TTL = timedelta(minutes=5)


def the_job() -> Job:
    return Job.objects.get(pk=JOB)


@pytest.mark.django_db
def test_a_run_that_ends_well_leaves_its_counts_and_lets_go():
    with jobs.running(JOB, ttl=TTL) as turn:
        held = the_job()
        assert (held.holder, held.finished_at) == (turn.holder, None)
        assert held.holder_label.startswith(f"process {os.getpid()} on ")
        turn.counts = {"queued": 3}
    job = the_job()
    assert (job.holder, job.locked_until, job.counts, job.error, job.runs, job.failures) == (None, None, {"queued": 3}, "", 1, 0)
    assert job.started_at <= job.finished_at == job.succeeded_at


@pytest.mark.django_db
def test_a_run_that_raises_leaves_its_error_and_lets_go():
    with jobs.running(JOB, ttl=TTL):
        pass
    succeeded = the_job().succeeded_at
    with pytest.raises(ValueError, match="no good"), jobs.running(JOB, ttl=TTL) as turn:
        turn.counts = {"queued": 1}
        raise ValueError("no good")
    job = the_job()
    assert (job.holder, job.error, job.counts, job.runs, job.failures) == (None, "ValueError: no good", {"queued": 1}, 2, 1)
    assert job.succeeded_at == succeeded < job.finished_at
    with jobs.running(JOB, ttl=TTL):
        pass
    assert (the_job().error, the_job().failures) == ("", 1)


@pytest.mark.django_db
def test_the_second_is_told_who_runs_it_and_since_when():
    with jobs.running(JOB, ttl=TTL):
        with pytest.raises(jobs.Busy, match=f"already running: process {os.getpid()} on .*, since 20") as told, jobs.running(JOB, ttl=TTL):
            raise AssertionError("two at once")
        assert told.value.since == the_job().started_at
        assert the_job().holder is not None  # the refused one let go of nothing
    with jobs.running("another", ttl=TTL):
        pass


@pytest.mark.django_db
def test_a_lock_that_ran_out_is_taken_over_and_its_holder_notices(caplog):
    first = jobs.take(JOB, ttl=TTL)
    assert first.extend()
    Job.objects.update(locked_until=Now() - timedelta(seconds=1))
    second = jobs.take(JOB, ttl=TTL)
    assert "a job's lock ran out and was taken over" in caplog.text
    assert not first.extend()
    first.counts = {"queued": 99}
    first.end("too late")
    job = the_job()
    assert (job.holder, job.counts, job.error, job.runs) == (second.holder, {}, "", 0)  # the late one ends nothing of the other's
    assert second.extend()


@pytest.mark.django_db
def test_a_lock_that_ran_out_and_that_nobody_wanted_is_still_ones_own():
    turn = jobs.take(JOB, ttl=TTL)
    Job.objects.update(locked_until=Now() - timedelta(seconds=1))
    assert turn.extend()
    with pytest.raises(jobs.Busy):
        jobs.take(JOB, ttl=TTL)


@pytest.mark.django_db
def test_the_hosts_clock_is_never_asked(monkeypatch):
    """One that is two hours off neither takes what is held nor waits for what is free."""

    def wrong_clock():
        raise AssertionError("the host's clock was asked")

    monkeypatch.setattr(timezone, "now", wrong_clock)
    with jobs.running(JOB, ttl=TTL) as turn:
        assert turn.extend()
        with pytest.raises(jobs.Busy):
            jobs.take(JOB, ttl=TTL)


HOLDER = """
import os, sys, django
django.setup()
from datetime import timedelta
from dispatch import jobs
with jobs.running(sys.argv[1], ttl=timedelta(seconds=float(sys.argv[2]))):
    print("holds it", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_holder_that_was_killed_blocks_until_the_end_of_its_lock_and_no_longer():
    command = [sys.executable, "-c", HOLDER, JOB, "3"]
    variables = environment(DJANGO_SETTINGS_MODULE="config.settings")
    with subprocess.Popen(command, cwd=project.BASE_DIR, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "holds it\n"
        holder.send_signal(signal.SIGKILL)
    with pytest.raises(jobs.Busy, match=f"process {holder.pid} on "):
        jobs.take(JOB, ttl=TTL)
    assert the_job().holder is not None
    taken: list[uuid.UUID] = []

    def take() -> bool:
        try:
            taken.append(jobs.take(JOB, ttl=TTL).holder)
        except jobs.Busy:
            return False
        return True

    until(take, "the end of the lock", seconds=6)
    assert the_job().holder == taken[0]
