"""Measures the cost of grammars in a full batch: requests with a different JSON schema each, against plain requests.

    pip install ".[guided]"
    python scripts/measure_guided.py --engine_dir ENGINE --json guided.json

The two variants take turns, with schemas that were never compiled before, and the best round of each counts, because
other load on the machine only slows it. The time is from the first submission to the last token; with --compiled the
schemas are compiled beforehand, and only the steps are compared. `scripts/measure_gpu.sh OUT guided` makes
an engine of random weights for a GPU and measures it.

    trtllm-lite build --checkpoint_dir CKPT --output_dir DRAFTING --max_draft_len 8
    python scripts/measure_guided.py --engine_dir ENGINE --drafting_engine_dir DRAFTING --json drafts.json

measures instead the gain of drafting the tokens that a grammar determines: records of several required properties, half
of them greedy, on two engines of the same model, with drafts and without, in turns. Both engines must generate the same
texts. The last line is the report as JSON.
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
    """The schema of a list of ``num_items`` objects or more, so that answers are long; their keys contain ``name``."""
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
    warm = GuidedDecodingParams(json=schema("warm", max_tokens))  # the first schema also reads the vocabulary
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


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
DATE = {"type": "string", "format": "date"}
PROMPT = "<|im_start|>user\nWrite an example of a {name} as JSON.<|im_end|>\n<|im_start|>assistant\n"


def record(**properties: Any) -> dict[str, Any]:
    """The schema of an object that has exactly these properties."""
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


RECORDS = {
    "person": record(first_name=TEXT, last_name=TEXT, age=WHOLE, email=TEXT, is_active={"type": "boolean"}),
    "book": record(title=TEXT, author=TEXT, year_published=WHOLE, genre={"enum": ["fiction", "science"]}, price=NUMBER),
    "order": record(
        order_id=WHOLE,
        customer=record(name=TEXT, address=record(street=TEXT, city=TEXT)),
        total_amount=NUMBER,
        currency={"enum": ["USD", "EUR"]},
    ),
    "weather report": record(location=TEXT, temperature_celsius=NUMBER, humidity_percent=WHOLE, wind_speed=NUMBER),
    "recipe": record(
        recipe_name=TEXT,
        servings=WHOLE,
        ingredients={"type": "array", "items": record(name=TEXT, quantity=TEXT), "minItems": 2, "maxItems": 3},
        preparation_minutes=WHOLE,
    ),
    "event": record(event_name=TEXT, start_date=DATE, end_date=DATE, location=TEXT, max_attendees=WHOLE),
}


def measure_drafts(plain: Path, drafting: Path, batch_size: int, rounds: int) -> dict[str, Any]:
    """Tokens per second of each round without drafts and with, the ratio of each, and the counts of drafts.

    Raises SystemExit if the outputs of the engines differ.
    """
    wishes = [(PROMPT.format(name=name), GuidedDecodingParams(json=schema)) for name, schema in RECORDS.items()] * 2
    rates: dict[str, list[float]] = {"without drafts": [], "with drafts": []}
    limits = {"max_batch_size": batch_size}
    with LLM(plain, **limits) as plain_engine, LLM(drafting, **limits) as with_drafts:
        for turn in range(rounds + 1):  # the first round compiles the grammars
            params = [
                SamplingParams(max_tokens=160, temperature=row // len(RECORDS) * 0.8, seed=turn, guided_decoding=guided)
                for row, (_, guided) in enumerate(wishes)
            ]
            texts = []
            for name, llm in zip(rates, (plain_engine, with_drafts), strict=True):
                start = time.perf_counter()
                outputs = llm.generate([prompt for prompt, _ in wishes], params, use_tqdm=False)
                seconds = time.perf_counter() - start
                texts.append([output.outputs[0].token_ids for output in outputs])
                if turn > 0:
                    rates[name].append(sum(map(len, texts[-1])) / seconds)
            if texts[0] != texts[1]:
                raise SystemExit("texts with drafts differ from those without: expected the same")
        speculation = with_drafts.get_stats().speculation
        machine = describe(plain_engine.session.manifest.target.kind)
    ratios = [now / before for before, now in zip(*rates.values(), strict=True)]
    kept, drafted = sum(speculation.num_accepted), sum(speculation.num_drafted)
    counts = {"batch_size": batch_size, "drafted": drafted, "kept": kept}
    return {**machine, **counts, "tokens_per_second": rates, "ratios": ratios}


def report_drafts(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the gain of drafts by grammars, and print it."""
    found = [
        measure_drafts(options.engine_dir, options.drafting_engine_dir, batch_size, options.rounds)
        for batch_size in (1, 4)
    ]
    rows = [
        [
            f"batch of {each['batch_size']}",
            *(f"{statistics.median(rates):.4g}" for rates in each["tokens_per_second"].values()),
            f"{statistics.median(each['ratios']):.3f}",
            f"{each['kept'] / max(each['drafted'], 1):.0%}",
        ]
        for each in found
    ]
    print_table("medians of the rounds, tok/s", ["", "without drafts", "with drafts", "ratio", "kept"], rows)
    return {"drafts": found}


def report_grammars(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the cost of grammars in a full batch, and print it."""
    with LLM(options.engine_dir) as llm:
        rates = measure(llm, options.num_requests, options.max_tokens, options.rounds, options.compiled)
        machine = describe(llm.session.manifest.target.kind)
    best = {name: max(values) for name, values in rates.items()}
    ratio = best["with grammars"] / best["without grammars"]
    rows = [[name, f"{best[name]:.4g}", f"{statistics.median(values):.4g}"] for name, values in rates.items()]
    print_table(f"{options.num_requests} requests, tok/s", ["", "best of the rounds", "median"], rows)
    print(f"ratio of the best: {ratio:.3f}, goal at least {GOAL:g}: {'met' if ratio >= GOAL else 'MISSED'}")
    return {**machine, "tokens_per_second": rates, "ratio": ratio}


def main() -> None:
    """Measure, print, and write the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine_dir", required=True)
    parser.add_argument("--drafting_engine_dir", help="measure what drafts of grammars gain; see above")
    parser.add_argument("--num_requests", type=int, default=64)
    parser.add_argument("--max_tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="compile the schemas before the time is taken")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    busy = busy_cores()
    print(f"{busy:.1f} cores were busy before the measurement")
    report = report_grammars(options) if options.drafting_engine_dir is None else report_drafts(options)
    report = {"busy_cores_before": busy, **report}
    print(json.dumps(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
