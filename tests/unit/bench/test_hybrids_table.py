"""The documents' table of hybrids shows the recorded reports, those of each model together."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from trtllm_lite.convert import open_model_config

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "scripts")])


def _report(architecture: str, qformat: str = "full_prec", **shape: int) -> dict[str, Any]:
    return {
        "benchmark": "latency",
        "commit": None,
        "date": "2026-12-01T00:00:00Z",
        "machine": {"gpu": "a card"},
        "versions": {"driver": "1.2"},
        "engine": {"architecture": architecture, "dtype": "bfloat16", "qformat": qformat},
        "shape": {"input_len": 512, "output_len": 65, "batch_size": 1} | shape,
        "terms": {"memory_bandwidth": 4000.0, "peak_tflops": 700.0},
        "figures": {
            **{"inter_token_latency_s": 0.002, "floor_inter_token_latency_s": 0.001},
            **{"time_to_first_token_s": 0.1, "floor_time_to_first_token_s": 0.04, "prefill_tokens_per_s": 80000.0},
        },
    }


def test_reports_are_rows_of_times_per_token_and_of_first_tokens(tmp_path: Path) -> None:
    from documents.hybrids import hybrids_table
    from documents.measured import record_all

    reports = {
        "a": [_report("NemotronHForCausalLM")],
        "b": [_report("Qwen3_5MoeForCausalLM", input_len=length, output_len=2) for length in (20000, 8000)],
        "c": [_report("Qwen3_5MoeForCausalLM", batch_size=batch) for batch in (64, 1)],
        "d": [_report("Qwen3_5ForCausalLM", "fp8_rowwise")],
    }
    (tmp_path / "reports").mkdir()
    for name, of_file in reports.items():
        (tmp_path / "reports" / f"{name}.json").write_text(json.dumps(of_file))
    record_all(tmp_path / "all.json", tmp_path / "reports", "0123456789abc")
    table = hybrids_table(tmp_path / "all.json")
    assert table.startswith("a card, driver 1.2, 2026-12-01; random weights and prompts.")
    assert "each state once (4,000 GB/s)" in table
    assert "(700 TFLOPS)" in table
    assert "512 tokens in, 65 out" in table
    moe = "Qwen3.5-35B-A3B shape, bfloat16"
    step, first = "2.00 ms |  | 1.00 ms | 50%", "100.00 ms | 80,000 tok/s | 40.00 ms | 40%"
    assert re.findall(r"^\| (\w.*) \| 0123456789 \|$", table, re.MULTILINE) == [
        f"{moe}, time per token, batch 1 | {step}",
        f"{moe}, time per token, batch 64 | {step}",
        f"{moe}, first token, prompt of 8,000 | {first}",
        f"{moe}, first token, prompt of 20,000 | {first}",
        f"Qwen3.6-27B shape, fp8_rowwise, time per token, batch 1 | {step}",
        f"Nemotron 3 Nano 30B-A3B shape, bfloat16, time per token, batch 1 | {step}",
    ]


def test_the_table_has_a_name_for_each_measured_model() -> None:
    from documents.hybrids import MODELS

    script, shapes = (ROOT / "scripts" / "measure_hybrids.sh").read_text(), ROOT / "configs" / "models"
    built = re.findall(r"build (\S+)(?: --qformat \S+)? ;;", script)
    found = {open_model_config(shapes / f"{name}.json").config.architecture: name for name in built}
    assert {of: name.lower().replace(" ", "-") for of, name in MODELS.items()} == found
