"""What one number can carry at human pacing: python bench/day_of_one_number.py [--days N] [--call-seconds S]

Walks through simulated days with sessions_app.pacing, the module that the sender itself draws its waits from, and prints a table.
The random source is seeded: the same arguments print the same figures. docs/pacing.md quotes what it printed.
"""

import argparse
import statistics
import sys
from datetime import datetime, time, timedelta
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sessions_app import pacing

ZONE = ZoneInfo("UTC")
MORNING = datetime(2026, 6, 1, 7, 0, tzinfo=ZONE)
SETTINGS = {
    "defaults": pacing.human(min_interval=8, max_interval=25, batch_size=10, batch_pause=120),
    "floors": pacing.human(min_interval=0, max_interval=0, batch_size=1000, batch_pause=0),
    "cautious": pacing.human(min_interval=30, max_interval=90, batch_size=10, batch_pause=600),
}
SPANS = {"first hour": timedelta(hours=1), "07:00 to 22:00": timedelta(hours=15), "24 hours": timedelta(hours=24)}
LISTS = (30, 100, 1000)


def send_times(how: pacing.Human, rng: Random, call: timedelta, until: timedelta) -> list[timedelta]:
    """When each message of one run leaves, counted from the start. The wait begins when the answer to the call before is there."""
    sent_at: list[timedelta] = []
    moment, in_batch = timedelta(0), 0
    while moment < until:
        sent_at.append(moment)
        in_batch += 1
        wait = pacing.wait_after(how, attempts_in_run=len(sent_at), attempts_in_batch=in_batch, rng=rng)
        in_batch = 0 if wait.ends_batch else in_batch
        moment += call + wait.duration
    return sent_at


def average_gap(how: pacing.Human) -> float:
    """Seconds from one message to the next in the long run: the formula beside the simulation."""
    interval = (how.min_interval + how.max_interval) / 2
    batch_pause = how.batch_pause * (1 + pacing.BATCH_PAUSE_SPREAD) / 2
    return ((how.batch_size - 1) * interval + batch_pause) / how.batch_size


def middle_and_range(values: list[float]) -> tuple[float, float, float]:
    """The median, and the range that nine days of ten fall into."""
    twentieths = statistics.quantiles(values, n=20)
    return statistics.median(values), twentieths[0], twentieths[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description="What one number can carry at human pacing.")
    parser.add_argument("--days", type=int, default=50, help="how many days to simulate for each row, 2 or more (default 50)")
    parser.add_argument("--call-seconds", type=float, default=0.0, help="how long the provider takes to answer (default 0)")
    options = parser.parse_args()
    if options.days < 2 or options.call_seconds < 0:
        parser.error("--days must be 2 or more, --call-seconds 0 or more")
    call = timedelta(seconds=options.call_seconds)

    window = pacing.safe_window(MORNING, starts=time(7, 0), ends=time(22, 0), zone=ZONE)
    assert window is not None
    assert window.closes_at - window.opens_at == SPANS["07:00 to 22:00"]

    print(f"{options.days} days for each row, seed 1, {options.call_seconds:g} s for each call; median (5 % to 95 %)")
    for name, how in SETTINGS.items():
        rng = Random(1)
        print(
            f"\n{name}: {how.min_interval} to {how.max_interval} s, batches of {how.batch_size}, then {how.batch_pause} s; "
            f"{average_gap(how) + options.call_seconds:.2f} s from one message to the next in the long run"
        )
        days = [send_times(how, rng, call, SPANS["24 hours"]) for _ in range(options.days)]
        for span, length in SPANS.items():
            middle, low, high = middle_and_range([float(sum(moment < length for moment in day)) for day in days])
            print(f"  messages, {span:<16} {middle:7.0f}   ({low:.0f} to {high:.0f})")
        for people in LISTS:
            if min(len(day) for day in days) < people:
                print(f"  minutes to reach {people:>5}    more than a day")
                continue
            middle, low, high = middle_and_range([day[people - 1].total_seconds() / 60 for day in days])
            print(f"  minutes to reach {people:>5}    {middle:7.1f}   ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
