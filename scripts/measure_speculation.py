"""Measures the gain of draft tokens on texts that repeat themselves, and their cost on texts that do not.

    trtllm-lite build --checkpoint_dir CKPT --output_dir ENGINE --max_draft_len 8
    python scripts/measure_speculation.py --engine_dir ENGINE --json speculation.json
    python scripts/measure_speculation.py --engine_dir ENGINE --draft_engine_dir SMALLER --json speculation.json

The variants take turns on the same requests, so that other load on the machine slows all of them. Each turn has its own
cache_salt, so that it learns nothing from earlier turns. Rates divide the tokens after the first by the time after it;
ratios are those of medians. On CPUs draft tokens must not change the output, which is checked.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common.texts_for_speculation import OPEN_ENDS, QUOTES

from trtllm_lite import LLM, SamplingParams
from trtllm_lite.bench.machine import busy_cores, describe
from trtllm_lite.cli.console import print_table

PLAIN = "without drafts"
GAIN_GOAL, LOSS_GOAL = 1.8, 0.98
CPU = "cpu"


def requests(kind: str, max_tokens: int) -> tuple[Sequence[list[dict[str, str]]], list[SamplingParams]]:
    """The chats of a kind of text, and the SamplingParams of each."""
    texts, temperature = (QUOTES, 0.0) if kind == "quotes" else (OPEN_ENDS, 1.3)
    chats = [[{"role": "user", "content": text}] for text in texts]
    params = [
        SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=row, ignore_eos=kind != "quotes")
        for row in range(len(chats))
    ]
    return chats, params


def run(llm: LLM, kind: str, salt: str, options: argparse.Namespace) -> tuple[float, list[list[int]]]:
    """Tokens per second of a request, with ``batch_size`` at a time, and the tokens."""
    chats, params = requests(kind, options.max_tokens)
    tokens: list[list[int]] = []
    seconds = 0.0
    for first in range(0, len(chats), options.batch_size):
        part = slice(first, first + options.batch_size)
        running = [
            llm.generate_async(chat, own, chat=True, cache_salt=salt)
            for chat, own in zip(chats[part], params[part], strict=True)
        ]
        for output in (one.result() for one in running):
            tokens.append(list(output.outputs[0].token_ids))
            seconds += output.metrics.total_seconds - output.metrics.first_token_seconds
    return (sum(map(len, tokens)) - len(tokens)) / seconds, tokens


def configs(options: argparse.Namespace) -> dict[str, dict[str, Any] | None]:
    """The variants by name."""
    drafts: dict[str, Any] = {"num_speculative_tokens": options.num_speculative_tokens}
    found: dict[str, dict[str, Any] | None] = {PLAIN: None}
    found |= {method: {"method": method, **drafts} for method in ("ngram", "suffix")}
    if options.draft_engine_dir:
        found["draft_model"] = {"method": "draft_model", "model": options.draft_engine_dir, **drafts}
    return found


def measure(llms: Mapping[str, LLM], kind: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Tokens per second of each variant in each round. Raises SystemExit if draft tokens changed a token on a CPU."""
    rates: dict[str, list[float]] = {name: [] for name in llms}
    for turn in range(options.rounds + 1):
        expected: list[list[int]] | None = None
        for name, llm in llms.items():
            rate, tokens = run(llm, kind, f"{kind} {turn}", options)
            expected = expected or tokens
            if llm.session.manifest.target.kind == CPU and tokens != expected:
                raise SystemExit(f"{name}: the tokens of {kind} differ from those of {PLAIN}")
            if turn > 0:  # the first round reads the weights
                rates[name].append(rate)
    return rates


def main() -> None:
    """Measure, print, and write the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine_dir", required=True)
    parser.add_argument("--draft_engine_dir")
    parser.add_argument("--num_speculative_tokens", type=int, default=8)
    parser.add_argument("--max_tokens", type=int, default=192)
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    busy = busy_cores()
    report: dict[str, Any] = {}
    with ExitStack() as stack:
        llms = {
            name: stack.enter_context(LLM(options.engine_dir, speculative_config=config))
            for name, config in configs(options).items()
        }
        device = llms[PLAIN].session.manifest.target.kind
        for kind, goal in (("quotes", GAIN_GOAL), ("open ends", LOSS_GOAL)):
            rates = measure(llms, kind, options)
            medians = {name: statistics.median(values) for name, values in rates.items()}
            ratios = {name: medians[name] / medians[PLAIN] for name in rates if name != PLAIN}
            rows = [[name, f"{medians[name]:.4g}", f"{ratios.get(name, 1):.2f}×"] for name in rates]
            print_table(f"{kind}, tok/s; goal ≥ {goal:g}×; {busy:.1f} cores were busy before", ["", "median", ""], rows)
            report[kind] = {"tokens_per_second": rates, "ratios": ratios, "goal": goal}
        steps = {name: llm.get_stats().speculation.tokens_per_step for name, llm in llms.items() if name != PLAIN}
        print("tokens of a row with drafts:", ", ".join(f"{name} {value:.2f}" for name, value in steps.items()))
    if options.json:
        report = {**describe(device), "busy_cores_before": busy, "batch_size": options.batch_size, **report}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
