"""Makes the documents' table of the accuracy cost of quantization, from reports of ``trtllm-lite eval --json``."""

import json
from pathlib import Path
from typing import Any

FULL = "bf16"
# Maps the name of a report to its quantization, and to the greatest increase of perplexity by the project's goals.
ROWS = {
    FULL: ("nothing", ""),
    "int8_wo": ("`int8_wo`", "1%"),
    "int8_sq": ("`int8_sq`", "1%"),
    "fp8_rowwise": ("`fp8_rowwise`", ""),
    "fp8_rowwise_gptq": ("`fp8_rowwise_gptq`", ""),
    "fp8": ("`fp8`", "1%"),
    "fp8_gptq": ("`fp8_gptq`", "1%"),
    "kv_int8": ("KV cache `int8`", ""),
    "kv_fp8": ("KV cache `fp8`", "0.5%"),
    "kv_int8_keys_16": ("KV cache `int8`, keys in 16 bits", ""),
    "kv_fp8_keys_16": ("KV cache `fp8`, keys in 16 bits", "0.5%"),
    "int4_wo": ("`int4_wo`, groups of 64", ""),
    "int4_awq": ("`int4_awq`, groups of 64", "less than `int4_wo`"),
    "int4_gptq": ("`int4_gptq`, groups of 64", "less than `int4_wo`"),
    "int4_gptq_int8_wo": ("`int4_gptq` with `int8_wo` where it helps most, 4.75 bits", "18%"),
}
COLUMNS = ("quantized", "perplexity", "increase", "aim", "commit")


def record_accuracy(path: Path, reports: list[Path], commit: str) -> None:
    """Store ``reports``, files named as in ``ROWS``, in the baseline ``path``, in place of those of the same name."""
    known = json.loads(path.read_text()) if path.is_file() else {}
    known |= {report.stem: json.loads(report.read_text()) | {"commit": commit} for report in reports}
    path.write_text(json.dumps({name: known[name] for name in ROWS if name in known}, indent=1) + "\n")


def accuracy_table(path: Path) -> str:
    """The Markdown of one baseline. Raises ValueError if its reports measure different texts."""
    reports: dict[str, dict[str, Any]] = json.loads(path.read_text())
    subjects = {(report["dataset"], report["num_tokens"], report["window"]) for report in reports.values()}
    if len(subjects) != 1:
        raise ValueError(f"{path}: expected reports of one text, found {sorted(subjects)}")
    dataset, num_tokens, window = subjects.pop()
    full = reports[FULL]["perplexity"]
    rows = [_row(name, reports[name], full) for name in ROWS if name in reports]
    lines = ["| " + " | ".join(cells) + " |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    return (
        f"SmolLM2-135M-Instruct on a CPU, {dataset}: {num_tokens:,} tokens predicted in windows of {window:,}. The "
        "weights come from a GGUF file of Q4_1, expanded to bfloat16: they went through 4 bits once.\n\n"
        + "\n".join(lines)
        + "\n\nMeasured by `bash scripts/measure_accuracy.sh`.\n"
    )


def _row(name: str, report: dict[str, Any], full: float) -> list[str]:
    title, aim = ROWS[name]
    increase = "" if name == FULL else f"{report['perplexity'] / full - 1:+.2%}"
    return [title, f"{report['perplexity']:.3f}", increase, aim, str(report["commit"])[:10]]
