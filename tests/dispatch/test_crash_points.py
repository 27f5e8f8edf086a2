"""A scheduler is killed at every step it takes, one after the other. What the receiver got is counted: nobody twice, nobody forgotten.

The two controls show that the sweep can see both: a recovery that sends the doubtful again doubles, one that believes them forgets.
"""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign
from dispatch.models import Attempt, DispatchLog
from sessions_app.sandbox import Sandbox
from tests.dispatch.invariants import assert_sum_rule
from tests.factories import make_campaign, make_recipients, make_session, make_step
from tests.processes import environment, until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
KILLED = -signal.SIGKILL


class Runner:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **order: object) -> tuple[int, list[str]]:
        """(exit code of the child, the steps it took if it came to its end)."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        steps: list[str] = []
        while True:
            line = self._process.stdout.readline()
            assert line, "the runner ended"
            answer = json.loads(line)
            if "code" in answer:
                return answer["code"], steps
            steps = answer["steps"]


@contextmanager
def running() -> Iterator[Runner]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash_runner"],
        cwd=settings.BASE_DIR,
        env=environment(LOG_LEVEL="ERROR"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Runner(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=30)


def is_quiet(sandbox: Sandbox) -> bool:
    return not [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def wait_until_read(sandbox: Sandbox) -> None:
    """Until the stand-in has read what dead processes wrote: a call of ours is accepted after theirs, and then no thread of it is left."""
    address = urlsplit(sandbox.url)
    with socket.create_connection((address.hostname, address.port)) as ours:
        ours.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while ours.recv(1024):
            pass
    until(lambda: is_quiet(sandbox), "the stand-in to finish reading")


def make_started(sandbox: Sandbox, name: str, people: int) -> Campaign:
    config = {"base_url": sandbox.url, "session": name, "engine": "NOWEB"}
    session = make_session(channel="sandbox", settings=config, checked_at=timezone.now())
    campaign = make_campaign(session=session, safe_hours=Campaign.SafeHours.OFF)
    make_step(campaign, text="Hello {{ name }}")
    make_recipients(people, campaign)
    return transitions.start(campaign.pk, by="ana")


def got(sandbox: Sandbox, name: str) -> Counter[str]:
    return Counter(message["chatId"] for message in sandbox.messages(session=name))


def sweep(*, how: str, people: int, threads: int = 1, faults: tuple[str, ...] = (), every: int = 1) -> tuple[int, int, list[str]]:
    """Kills at every step until one run survives. Returns (doubled, forgotten, the steps of the survivor)."""
    doubled = forgotten = 0
    with Sandbox() as sandbox, running() as runner:
        for kill_at in range(0, 1000, every):
            name = f"at-{kill_at}"
            sandbox.script(*({"kind": kind, "session": name} for kind in faults))
            campaign = make_started(sandbox, name, people)
            code, steps = runner.ask(do="send", campaign=campaign.pk, steps=kill_at, threads=threads)
            wait_until_read(sandbox)
            if code == KILLED:
                assert runner.ask(do="finish", campaign=campaign.pk, how=how)[0] == 0
            counts = got(sandbox, name)
            doubled += sum(count > 1 for count in counts.values())
            forgotten += people - len(counts)
            assert Campaign.objects.get(pk=campaign.pk).status == Campaign.Status.COMPLETED
            assert set(DispatchLog.objects.filter(campaign=campaign).values_list("status", flat=True)) == {"SENT"}
            assert_sum_rule(campaign)
            if code != KILLED:
                assert code == 0
                return doubled, forgotten, steps
    raise AssertionError("it never came to its end")


def test_killed_at_every_step_nobody_gets_two_and_nobody_is_forgotten():
    doubled, forgotten, steps = sweep(how="verify", people=3)
    assert (doubled, forgotten) == (0, 0)
    assert len(steps) > 30
    assert sum(step.startswith("write") for step in steps) >= 3
    assert not Attempt.objects.filter(outcome="ACCEPTED", attempt__gt=1).exclude(log__attempts__outcome="LOST").exists()


def test_the_same_while_the_provider_loses_answers():
    """So that the steps of verification, and of sending again what never arrived, are among those at which it dies."""
    doubled, forgotten, _steps = sweep(how="verify", people=2, faults=("drop-after-accept", "drop-before-accept"))
    assert (doubled, forgotten) == (0, 0)


@pytest.mark.parametrize(("how", "doubles", "forgets"), [("send again", True, False), ("believe", False, True)])
def test_a_recovery_that_guesses_doubles_or_forgets_and_the_sweep_sees_it(how, doubles, forgets):
    doubled, forgotten, _steps = sweep(how=how, people=1)
    assert (doubled > 0, forgotten > 0) == (doubles, forgets)
