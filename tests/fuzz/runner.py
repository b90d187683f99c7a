"""Starts processes that read fuzzed inputs, and reports the input that ended one."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_MAX_REPORT = 6000


@dataclass(frozen=True)
class Outcome:
    """How many inputs were ``accepted``; the seed that ended the process, or None, and the ``report`` of its end."""

    accepted: int
    failed_seed: int | None
    report: str


def run(target: str, first: int, count: int) -> Outcome:
    """Try up to ``count`` inputs of ``target`` from the seed ``first`` on, until one fails."""
    command = [sys.executable, "-m", "tests.fuzz.child", target, str(first), str(count)]
    process = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, errors="replace", check=False)
    if process.returncode == 0:
        (accepted,) = re.findall(r"^accepted (\d+)$", process.stdout, re.MULTILINE)
        return Outcome(int(accepted), None, "")
    seeds = re.findall(r"^seed (\d+)$", process.stdout, re.MULTILINE)
    seed = int(seeds[-1]) if seeds else first
    report = f"exit status {process.returncode}; once more: python -m tests.fuzz {target} --first {seed} --count 1\n"
    return Outcome(0, seed, report + process.stderr[-_MAX_REPORT:])
