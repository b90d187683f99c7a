"""The documents' table of model families is complete."""

import sys
from pathlib import Path

import pytest

from trtllm_lite.convert.family import all_families

ROOT = Path(__file__).resolve().parents[3]


def test_the_table_has_all_families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "scripts")])
    from documents.families import COMPARED, families_table

    table = families_table()
    assert all(name in table for family in all_families().values() for name in family.architectures)
    assert COMPARED.keys() <= all_families().keys()
