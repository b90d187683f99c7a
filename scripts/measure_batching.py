"""Measures the gain of in-flight batching on a CPU engine of SmolLM2, and checks that it changes no token.

    trtllm-lite build --checkpoint_dir CKPT --output_dir ENGINE --max_batch_size 64 --max_input_len 1024
    python scripts/measure_batching.py --engine_dir ENGINE --json batching.json

The variants take turns, and the best round of each counts, because other load on the machine only slows it.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtllm_lite.bench.machine import busy_cores, describe
from trtllm_lite.bench.serving import Run, serve
from trtllm_lite.bench.workload import PlannedRequest, Workload
from trtllm_lite.cli.console import print_table
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.session.session import Session

MIXED = Workload(num_requests=64, input_len="16:128", output_len="32:96")
NUM_ALONE = 16
PREFIXED = Workload(num_requests=9, input_len="32", output_len="4", prefix_len=512)
BATCHING_GOAL, PREFIX_GOAL, QUARTER_GOAL = 3.0, 5.0, 0.8


@dataclass(frozen=True)
class Finding:
    """The ratio of the first of ``figures`` to the second, and the least value it should have."""

    name: str
    figures: dict[str, float]
    goal: float

    @property
    def ratio(self) -> float:
        """The ratio that is compared with the goal."""
        first, second = self.figures.values()
        return first / second

    @property
    def row(self) -> list[str]:
        """The finding as a row of the table."""
        verdict = "met" if self.ratio >= self.goal else "MISSED"
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        return [self.name, figures, f"{self.ratio:.2f}×", f"≥ {self.goal:g}×", verdict]


def open_engine(engine_dir: str, **options: Any) -> Session:
    """A session on the engine, whose weights have been read once."""
    session = ModelRunner.from_dir(engine_dir, **options).session
    serve(session, make(Workload(num_requests=1, input_len="1", output_len="2"), session))
    return session


def make(workload: Workload, session: Session) -> list[PlannedRequest]:
    """The requests of ``workload`` for the session's model and limits."""
    return workload.requests(session.manifest.model.vocab_size, session.limits)


def rate(run: Run) -> float:
    """Generated tokens per second."""
    return sum(len(tokens) for tokens in run.outputs) / run.seconds


def batching(engine_dir: str, rounds: int) -> list[Finding]:
    """Measure 64 mixed requests together, some of them one at a time, and all in a quarter of the KV cache."""
    whole = open_engine(engine_dir, max_tokens_in_paged_kv_cache=MIXED.num_requests * 256)
    requests = make(MIXED, whole)
    quarter = _demand(requests, whole) // 4
    small = {
        policy: open_engine(engine_dir, max_tokens_in_paged_kv_cache=quarter, capacity_scheduler_policy=policy)
        for policy in ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION")
    }
    rates: dict[str, float] = defaultdict(float)
    for _ in range(rounds):
        together = serve(whole, requests)
        runs = {"together": together, "one at a time": serve(whole, requests[:NUM_ALONE], concurrency=1)}
        runs |= {policy: serve(session, requests) for policy, session in small.items()}
        for name, run in runs.items():
            rates[name] = max(rates[name], rate(run))
            if run.outputs != together.outputs[: len(run.outputs)]:
                raise SystemExit(f"{name}: the tokens differ from those of requests that run together")
            if name in small:
                _check_order(name, run)
    return [
        _finding("throughput, tok/s", rates, "together", "one at a time", BATCHING_GOAL),
        *(_finding("a quarter of the cache, tok/s", rates, policy, "together", QUARTER_GOAL) for policy in small),
    ]


def shared_prefix(engine_dir: str, rounds: int) -> list[Finding]:
    """Measure seconds to the first token of requests that share 512 tokens, with and without reuse of prefixes."""
    times: dict[str, float] = defaultdict(lambda: float("inf"))
    for _ in range(rounds):
        outputs = []
        for name, enabled in (("without reuse", False), ("with reuse", True)):
            session = open_engine(engine_dir, max_batch_size=8, kv_cache_enable_block_reuse=enabled)
            run = serve(session, make(PREFIXED, session), concurrency=1)
            later = statistics.median(record.time_to_first_token_s for record in run.records[1:])
            times[name] = min(times[name], later)
            outputs.append(run.outputs)
        if outputs[0] != outputs[1]:
            raise SystemExit("prefix reuse changes tokens: expected the same with and without")
    return [_finding("first token after a shared prefix, s", times, "without reuse", "with reuse", PREFIX_GOAL)]


def _finding(name: str, figures: Mapping[str, float], first: str, second: str, goal: float) -> Finding:
    return Finding(name, {first: figures[first], second: figures[second]}, goal)


def _demand(requests: Sequence[PlannedRequest], session: Session) -> int:
    """Tokens in the KV cache blocks that the requests need at the same time; a request's last token is never stored."""
    limits = session.limits
    blocks = sum(limits.blocks_for(request.prompt_len + request.output_len - 1) for request in requests)
    return blocks * limits.tokens_per_block


def _check_order(name: str, run: Run) -> None:
    first_tokens = [record.token_times_s[0] for record in run.records]
    if first_tokens != sorted(first_tokens):
        raise SystemExit(f"{name}: a later request was served before an earlier one")


def main() -> None:
    """Measure, print, and write the findings if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine_dir", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    busy = busy_cores()
    findings = [*batching(options.engine_dir, options.rounds), *shared_prefix(options.engine_dir, options.rounds)]
    title = f"tokens equal in all variants; {busy:.1f} cores were busy before"
    print_table(title, ["", "best of the rounds", "ratio", "goal", ""], [entry.row for entry in findings])
    if options.json:
        report = {
            **describe("cpu"),
            "busy_cores_before": busy,
            "findings": [{**asdict(entry), "ratio": entry.ratio} for entry in findings],
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
