"""A scheduler is killed at every step it takes, one after the other. What the receiver got is counted: nobody twice, nobody forgotten.

The two controls show that the sweep can see both: a recovery that sends the doubtful again doubles, one that believes them forgets.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign
from dispatch.models import DispatchLog
from sessions_app.sandbox import Sandbox
from tests.dispatch.invariants import assert_sum_rule, broken
from tests.factories import make_campaign, make_recipients, make_session, make_step
from tests.processes import environment, until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
KILLED = -signal.SIGKILL
STRIDE = int(os.environ.get("PACELINE_CRASH_STRIDE", "2"))  # of the longer sweep: 1 takes every step


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


def readers() -> set[threading.Thread]:
    """Also those of servers that other tests of this process left to end."""
    return {thread for thread in threading.enumerate() if "process_request_thread" in thread.name}


def wait_until_read(sandbox: Sandbox, others: set[threading.Thread]) -> None:
    """Until the stand-in has read what dead processes wrote: a call of ours is accepted after theirs, and then no thread of it is left."""
    address = urlsplit(sandbox.url)
    with socket.create_connection((address.hostname, address.port)) as ours:
        ours.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while ours.recv(1024):
            pass
    until(lambda: not readers() - others, "the stand-in to finish reading")


def make_started(sandbox: Sandbox, name: str, people: int) -> Campaign:
    config = {"base_url": sandbox.url, "session": name, "engine": "NOWEB"}
    session = make_session(channel="sandbox", settings=config, checked_at=timezone.now())
    campaign = make_campaign(session=session, safe_hours=Campaign.SafeHours.OFF)
    make_step(campaign, text="Hello {{ name }}")
    make_recipients(people, campaign)
    return transitions.start(campaign.pk, by="ana")


@dataclass
class Counts:
    doubled: int = 0
    forgotten: int = 0
    steps: list[str] = field(default_factory=list)  # of the run that survived


def kill(sandbox: Sandbox, runner: Runner, kill_at: int, *, how: str, people: int, faults: tuple[str, ...], counts: Counts) -> bool:
    """One campaign whose scheduler is killed before that step, recovered and finished by another. False: it survived."""
    name = f"at-{kill_at}"
    others = readers()
    sandbox.script(*({"kind": kind, "session": name} for kind in faults))
    campaign = make_started(sandbox, name, people)
    code, counts.steps = runner.ask(do="send", campaign=campaign.pk, steps=kill_at, threads=1)
    wait_until_read(sandbox, others)
    if code == KILLED:
        assert runner.ask(do="finish", campaign=campaign.pk, how=how)[0] == 0
    else:
        assert code == 0
    received = Counter(message["chatId"] for message in sandbox.messages(session=name))
    counts.doubled += sum(count > 1 for count in received.values())
    counts.forgotten += people - len(received)
    assert Campaign.objects.get(pk=campaign.pk).status == Campaign.Status.COMPLETED
    assert set(DispatchLog.objects.filter(campaign=campaign).values_list("status", flat=True)) == {"SENT"}
    assert_sum_rule(campaign)
    assert broken() == []
    return code == KILLED


def sweep(*, people: int, faults: tuple[str, ...] = (), begin: int = 0, stride: int = 1) -> Counts:
    """At every step from `begin` on, or every so many, until one run survives."""
    counts = Counts()
    with Sandbox() as sandbox, running() as runner:
        for kill_at in range(begin, 1000, stride):
            if not kill(sandbox, runner, kill_at, how="verify", people=people, faults=faults, counts=counts):
                return counts
    raise AssertionError("it never came to its end")


def around_the_writes(steps: list[str]) -> list[int]:
    writes = [position for position, step in enumerate(steps) if step.startswith("write")]
    return sorted({position + near for position in writes for near in (-1, 0, 1)})


def test_killed_at_every_step_nobody_gets_two_and_nobody_is_forgotten():
    counts = sweep(people=3)
    assert (counts.doubled, counts.forgotten) == (0, 0)
    assert len(counts.steps) > 25
    assert sum(step.startswith("write") for step in counts.steps) >= 3


def test_the_same_while_the_provider_loses_answers():
    """So that the steps of verification, and of sending again what never arrived, are among those at which it dies."""
    faults = ("drop-after-accept", "drop-before-accept")
    counts = sweep(people=2, faults=faults, begin=9, stride=STRIDE)  # the first message leaves at the tenth
    assert counts.steps[9].startswith(("write", "UPDATE"))
    assert (counts.doubled, counts.forgotten) == (0, 0)


@pytest.mark.parametrize(("how", "doubles", "forgets"), [("send again", True, False), ("believe", False, True)])
def test_a_recovery_that_guesses_doubles_or_forgets_and_the_sweep_sees_it(how, doubles, forgets):
    counts = Counts()
    with Sandbox() as sandbox, running() as runner:
        assert not kill(sandbox, runner, 1000, how=how, people=1, faults=(), counts=counts)
        for kill_at in around_the_writes(counts.steps):
            assert kill(sandbox, runner, kill_at, how=how, people=1, faults=(), counts=counts)
    assert (counts.doubled > 0, counts.forgotten > 0) == (doubles, forgets)
