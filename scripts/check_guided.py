"""Checks texts that a model writes under JSON schemas by an independent validator.

    pip install ".[guided]" jsonschema
    python scripts/check_guided.py --engine_dir ENGINE --schema_dir jsonschemabench/data --json report.json

It also reports the time from a new schema to its first mask, because the submission of a request waits for that mask.
Schemas are files that end in .json, anywhere below the directory, in an order that --seed decides; JSONSchemaBench
(github.com/guidance-ai/jsonschemabench) has many. A text that ends by itself must be valid: if one is not, it is
printed, and the exit status is 1. Texts that end at --max_tokens are counted, and schemas that are refused listed.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import validator_for

from trtllm_lite import LLM, GuidedDecodingParams, RequestOutput, SamplingParams
from trtllm_lite.common.printable import printable
from trtllm_lite.errors import TrtllmLiteError
from trtllm_lite.runtime.session.request import Request

GOAL = 20.0  # milliseconds to the first mask, for 99% of the schemas
PROMPT = np.zeros(1, np.int32)  # the prompt of requests that only compile their schemas


@dataclass
class Findings:
    """What the check has found; each text, message and refusal is paired with the path of its schema."""

    num_schemas: int = 0
    first_masks: list[float] = field(default_factory=list)  # milliseconds from a schema to its first mask
    generations: Counter[str] = field(default_factory=Counter)
    invalid: list[tuple[str, str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)


def read_schemas(directory: Path, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The paths, relative to ``directory``, of the schemas below it, and the schemas; other files are skipped."""
    paths = sorted(directory.rglob("*.json"))
    random.Random(seed).shuffle(paths)
    for path in paths:
        try:
            schema = json.loads(path.read_text())
        except (ValueError, OSError):
            continue
        if isinstance(schema, dict):
            yield path.relative_to(directory).as_posix(), schema


def accepted(llm: LLM, options: argparse.Namespace, findings: Findings) -> dict[str, dict[str, Any]]:
    """The first ``options.num_schemas`` schemas that are not refused, by path; records the refused ones."""
    found: dict[str, dict[str, Any]] = {}
    compile_schema(llm, {"type": "null"})  # the first schema also reads the vocabulary
    for path, schema in read_schemas(options.schema_dir, options.seed):
        try:
            start = time.perf_counter()
            compile_schema(llm, schema)
            findings.first_masks.append((time.perf_counter() - start) * 1e3)
            found[path] = schema
        except TrtllmLiteError as error:
            findings.refused.append((path, str(error)))
        if len(found) == options.num_schemas:
            break
    findings.num_schemas = len(found)
    return found


def compile_schema(llm: LLM, schema: dict[str, Any]) -> None:
    """Compile a schema up to its first mask. Raises TrtllmLiteError if it is refused."""
    [params] = wishes({"": schema}, 0, max_tokens=1)
    llm.session.check(Request(PROMPT, params))


def wishes(schemas: Mapping[str, dict[str, Any]], seed: int, max_tokens: int) -> list[SamplingParams]:
    """SamplingParams at temperature 1 for each schema, with seeds from ``seed`` on."""
    return [
        SamplingParams(
            temperature=1.0, seed=seed + row, max_tokens=max_tokens, guided_decoding=GuidedDecodingParams(json=schema)
        )
        for row, schema in enumerate(schemas.values())
    ]


def check(path: str, schema: dict[str, Any], output: RequestOutput, findings: Findings) -> None:
    """Record how an output ended, and its defects."""
    if output.error:
        findings.failed.append((path, str(output.error)))
        return
    [generated] = output.outputs
    findings.generations[generated.finish_reason] += 1
    if generated.finish_reason != "stop":
        return
    try:
        validator_for(schema, default=Draft202012Validator)(schema).validate(json.loads(generated.text))
    except (ValueError, ValidationError) as error:
        findings.invalid.append((path, generated.text, str(error)))


def main() -> None:
    """Generate, validate, print, and write the findings if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine_dir", required=True)
    parser.add_argument("--schema_dir", type=Path, required=True)
    parser.add_argument("--num_schemas", type=int, default=500)
    parser.add_argument("--per_schema", type=int, default=20)
    parser.add_argument("--max_tokens", type=int, default=256)
    parser.add_argument("--prompt", default="A JSON record:\n")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of schemas, and of the sampled tokens")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    findings = Findings()
    with LLM(options.engine_dir) as llm:
        schemas = accepted(llm, options, findings)
        for turn in range(options.per_schema):
            params = wishes(schemas, options.seed + turn * len(schemas), options.max_tokens)
            outputs = llm.generate([options.prompt] * len(schemas), params, use_tqdm=False)
            for (path, schema), output in zip(schemas.items(), outputs, strict=True):
                check(path, schema, output, findings)
    if options.json:
        options.json.write_text(json.dumps(vars(findings), indent=1) + "\n")
    ends = ", ".join(f"{reason} {count}" for reason, count in findings.generations.most_common())
    print(f"{findings.num_schemas} schemas, {len(findings.refused)} others refused; generations that ended with {ends}")
    p50, p99 = np.percentile(findings.first_masks, [50, 99])
    met = "met" if p99 <= GOAL else "MISSED"
    print(f"first masks after {p50:.2f} ms (p50) and {p99:.1f} ms (p99), goal at most {GOAL:g} ms: {met}")
    for path, *what in (*findings.failed, *findings.invalid):
        print(printable(" ".join([path, *what])))
    print(f"{len(findings.failed)} failed, {len(findings.invalid)} invalid")
    raise SystemExit(bool(findings.invalid))


if __name__ == "__main__":
    main()
