"""``scripts/check_goals.py`` prints which goals were met or missed, and fails if one was missed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real_models import REPOSITORY

BASELINE = {"prefill_tokens_per_s": 100.0, "decode_tokens_per_s": 10.0}


@pytest.mark.parametrize(("decode", "missed"), [(41.0, 0), (39.0, 1)])
def test_goals_are_checked(tmp_path: Path, decode: float, missed: int) -> None:
    figures = {
        "memory_overhead_bytes": 1e8,
        "load_s": 0.2,
        "prefill_tokens_per_s": 130.0,
        "decode_tokens_per_s": decode,
    }
    engine = {"target": "cpu", "dtype": "bfloat16"}
    (tmp_path / "l.json").write_text(json.dumps([{"figures": figures, "engine": engine, "baseline": BASELINE}]))
    command = [sys.executable, "scripts/check_goals.py", str(tmp_path / "l.json")]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (missed, "")
    lines = found.stdout.splitlines()
    assert lines[0] == "l.json: memory beyond weights and KV cache, MiB: 95.37 (goal <= 238): met"
    assert [line.rpartition(" ")[2] for line in lines] == ["met", "met", "met", "MISSED" if missed else "met"]
