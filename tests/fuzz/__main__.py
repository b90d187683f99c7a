"""Fuzzes for longer than the suite does: ``python -m tests.fuzz [TARGET …] [--first SEED] [--count N]``."""

import argparse
import sys

from tests.fuzz.runner import run
from tests.fuzz.targets import NAMES


def main() -> int:
    """Print every failing input and continue after it; returns 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", default=NAMES, choices=[*NAMES, []], metavar="TARGET")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10_000, help="inputs of each target")
    options = parser.parse_args()
    failures = 0
    for target in options.targets or NAMES:
        first, end = options.first, options.first + options.count
        while first < end:
            outcome = run(target, first, end - first)
            if outcome.failed_seed is None:
                break
            failures += 1
            print(f"{target}, seed {outcome.failed_seed}: {outcome.report}", flush=True)
            first = outcome.failed_seed + 1
        print(f"{target}: tried the seeds {options.first} to {end - 1}, {failures} failures so far", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
