"""Measures what grammars cost a full batch: requests with another JSON schema each, against the same without.

    pip install ".[guided]"
    python scripts/measure_guided.py --engine_dir ENGINE --json guided.json

The two variants take turns, with schemas that were never compiled before, and the best round of each counts: other
guests of a machine come and go, and only slow it. The time is that from the first submission to the last token; with
--compiled the schemas are compiled before, and only the steps are compared. The last line is the report as JSON.
`scripts/measure_gpu.sh OUT guided` makes an engine of random weights for a GPU and measures it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_lite import LLM, GuidedDecodingParams, SamplingParams
from trtllm_lite.bench.machine import busy_cores, describe
from trtllm_lite.cli.console import print_table

GOAL = 0.97
PROMPT_LEN = 64


def schema(name: str, num_items: int) -> dict[str, Any]:
    """A list of at least ``num_items`` objects whose keys have ``name`` in them; so long a list does not end early."""
    person = {
        "type": "object",
        "properties": {
            f"name_{name}": {"type": "string", "maxLength": 40},
            f"age_{name}": {"type": "integer", "minimum": 0},
            f"kind_{name}": {"enum": ["adult", "child", name]},
            f"tags_{name}": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        },
        "required": [f"name_{name}", f"age_{name}", f"kind_{name}"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": person, "minItems": num_items}


def rate(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], max_tokens: int) -> float:
    """Generated tokens per second; raises SystemExit unless every request generated ``max_tokens``."""
    start = time.perf_counter()
    outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
    seconds = time.perf_counter() - start
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    if set(lengths) != {max_tokens}:
        raise SystemExit(f"requests generated {min(lengths)} to {max(lengths)} tokens, expected {max_tokens} from each")
    return sum(lengths) / seconds


def measure(llm: LLM, num_requests: int, max_tokens: int, rounds: int, compiled: bool) -> dict[str, list[float]]:
    """Tokens per second of each round, without grammars and with; ``compiled`` leaves the compilation out."""
    generator = np.random.default_rng(0)
    vocab_size = llm.session.manifest.model.vocab_size
    prompts = [generator.integers(0, vocab_size, PROMPT_LEN).tolist() for _ in range(num_requests)]
    plain = [SamplingParams(max_tokens=max_tokens, seed=row, ignore_eos=True) for row in range(num_requests)]
    warm = GuidedDecodingParams(json=schema("warm", max_tokens))  # the library reads the vocabulary once
    llm.generate(prompts[0], SamplingParams(max_tokens=1, guided_decoding=warm), use_tqdm=False)
    rate(llm, prompts, plain, max_tokens)  # reads the weights, and fills the prefix cache for all rounds
    rates: dict[str, list[float]] = {"without grammars": [], "with grammars": []}
    for turn in range(rounds):
        guided = [
            SamplingParams(
                max_tokens=max_tokens,
                seed=row,
                guided_decoding=GuidedDecodingParams(json=schema(f"{turn}_{row}", max_tokens)),
            )
            for row in range(num_requests)
        ]
        if compiled:
            llm.generate(prompts, [replace(own, max_tokens=1) for own in guided], use_tqdm=False)
        rates["without grammars"].append(rate(llm, prompts, plain, max_tokens))
        rates["with grammars"].append(rate(llm, prompts, guided, max_tokens))
    return rates


def main() -> None:
    """Measure, print, and write the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine_dir", required=True)
    parser.add_argument("--num_requests", type=int, default=64)
    parser.add_argument("--max_tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="compile the schemas before the time is taken")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    busy = busy_cores()
    with LLM(options.engine_dir) as llm:
        device = llm.session.manifest.target.kind
        rates = measure(llm, options.num_requests, options.max_tokens, options.rounds, options.compiled)
    best = {name: max(values) for name, values in rates.items()}
    ratio = best["with grammars"] / best["without grammars"]
    rows = [[name, f"{best[name]:.4g}", f"{statistics.median(values):.4g}"] for name, values in rates.items()]
    title = f"{options.num_requests} requests, tok/s; {busy:.1f} cores were busy before"
    print_table(title, ["", "best of the rounds", "median"], rows)
    print(f"ratio of the best: {ratio:.3f}, goal at least {GOAL:g}: {'met' if ratio >= GOAL else 'MISSED'}")
    report = {**describe(device), "busy_cores_before": busy, "tokens_per_second": rates, "ratio": ratio}
    print(json.dumps(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
