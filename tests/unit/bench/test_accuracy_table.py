"""The documents' accuracy table shows the recorded reports, which all use one text."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "scripts")])


def test_reports_are_recorded_by_name(tmp_path: Path) -> None:
    from documents.accuracy import accuracy_table, record_accuracy

    report = {"dataset": "a text", "num_tokens": 1000, "window": 100, "perplexity": 10.0}
    for name, perplexity in (("bf16", 10.0), ("fp8", 10.5)):
        (tmp_path / f"{name}.json").write_text(json.dumps(report | {"perplexity": perplexity}))
    record_accuracy(tmp_path / "all.json", [tmp_path / "fp8.json"], "older")
    record_accuracy(tmp_path / "all.json", [tmp_path / "fp8.json", tmp_path / "bf16.json"], "abc")
    table = accuracy_table(tmp_path / "all.json")
    assert "a text: 1,000 tokens predicted in windows of 100" in table
    assert "| nothing | 10.000 |  |  | abc |\n| `fp8` | 10.500 | +5.00% | 1% | abc |" in table
    (tmp_path / "bf16.json").write_text(json.dumps(report | {"dataset": "another"}))
    record_accuracy(tmp_path / "all.json", [tmp_path / "bf16.json"], "abc")
    with pytest.raises(ValueError, match="expected reports of one text"):
        accuracy_table(tmp_path / "all.json")
