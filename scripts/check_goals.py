"""Compares latency reports of CPU engines with the project's goals; exit code 1 if a goal is missed.

The goals bound memory beyond weights and KV cache, load time, and speed relative to transformers in
float32 on two cores.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_MEMORY_MIB = 238
MOST_LOAD_S = 0.5
LEAST_PREFILL = 1.2
LEAST_DECODE = {"bfloat16": 4.0, "float16": 4.0, "float32": 2.4}


@dataclass(frozen=True)
class Goal:
    """A goal, and the value that was measured for it."""

    name: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the value is on the right side of the bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{self.name}: {self.value:.2f} (goal {sign} {self.bound:g}): {'met' if self.met else 'MISSED'}"


def goals(report: Mapping[str, Any]) -> Iterator[Goal]:
    """The goals that apply to a report of ``bench latency``; some need the report to have figures of transformers."""
    figures, baseline = report["figures"], report["baseline"]
    if report["engine"]["target"] != "cpu":
        return
    yield Goal("memory beyond weights and KV cache, MiB", figures["memory_overhead_bytes"] / 2**20, MOST_MEMORY_MIB)
    yield Goal("load, s", figures["load_s"], MOST_LOAD_S)
    if baseline is not None:
        prefill, decode = (figures[name] / baseline[name] for name in ("prefill_tokens_per_s", "decode_tokens_per_s"))
        yield Goal("prefill, times transformers", prefill, LEAST_PREFILL, at_least=True)
        yield Goal("decode, times transformers", decode, LEAST_DECODE[report["engine"]["dtype"]], at_least=True)


def main() -> None:
    """Print every goal of the reports, and fail if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path, help="files that `bench latency --json` wrote")
    missed = 0
    for path in parser.parse_args().reports:
        for report in json.loads(path.read_text()):
            for goal in goals(report):
                print(f"{path.name}: {goal}")
                missed += not goal.met
    sys.exit(min(missed, 1))


if __name__ == "__main__":
    main()
