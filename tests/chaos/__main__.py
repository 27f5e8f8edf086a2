"""python -m tests.chaos: the long version. Prints the seed, which reproduces what is done to the processes, and a table for each run."""

import argparse
import sys
import time
from random import SystemRandom

from tests.chaos.database import folder
from tests.chaos.harness import Ground
from tests.chaos.plan import Plan, lanes


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1_000_000))
    parser.add_argument("--seconds", type=float, default=150, help="of chaos, at most; it ends when nearly all messages are through")
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--only", choices=["direct", "pooled", "naive"], help="one of the three runs")
    chosen = parser.parse_args()
    small = max(120, chosen.messages // 8)
    plans = {
        "direct": Plan(chosen.seed, chosen.seconds, lanes(chosen.messages), long_freezes=2),
        "pooled": Plan(chosen.seed, chosen.seconds / 4, lanes(small), pooled=True),
        "naive": Plan(chosen.seed, chosen.seconds / 4, lanes(small), naive=True),
    }
    titles = {"direct": "the engine", "pooled": "the engine, through PgBouncer", "naive": "negative control: recovery that sends again"}
    failed = []
    with folder() as place, Ground(place) as ground:
        for name, plan in plans.items():
            if chosen.only not in (None, name):
                continue
            begun = time.monotonic()
            say(f"{titles[name]}, seed {plan.seed}")
            figures = ground.run(plan)
            good = figures.doubled > 0 if plan.naive else figures.passed
            say(figures.table())
            if not plan.naive and not good:
                say(figures.cases())
            words = "it doubles, as it must" if plan.naive and good else "passed" if good else "FAILED"
            say(f"{words} after {time.monotonic() - begun:.0f} s\n")
            failed += [] if good else [name]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
