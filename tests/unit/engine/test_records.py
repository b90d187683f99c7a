from dataclasses import dataclass, field
from typing import Any

import pytest

from trtllm_lite.engine.records import from_json, parse_json, to_json
from trtllm_lite.errors import EngineError


@dataclass(frozen=True)
class Inner:
    number: int
    keyword: str = field(metadata={"key": "class"})


@dataclass(frozen=True)
class Outer:
    many: tuple[Inner, ...]
    listed: list[int]
    mapped: dict[str, float]
    either: int | str | None
    anything: dict[str, Any]
    flag: bool


VALID = {
    "many": [{"number": 1, "class": "x"}],
    "listed": [1, 2],
    "mapped": {"a": 1},
    "either": None,
    "anything": {"b": [1, {"c": None}]},
    "flag": True,
}


def test_round_trip() -> None:
    record = from_json(Outer, VALID, "top")
    assert record.many == (Inner(1, "x"),)
    assert type(record.mapped["a"]) is float
    assert to_json(record) == VALID


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flag": 1}, "top.flag: expected bool, found 1"),
        ({"listed": [True]}, r"top.listed\[0\]: expected int, found True"),
        ({"listed": {}}, "top.listed: expected a list, found dict"),
        ({"many": [{"number": 1}]}, r"top.many\[0\]: expected the keys number, class; missing: class"),
        ({"many": [3]}, r"top.many\[0\]: expected an object, found 3"),
        ({"mapped": {"a": "1"}}, "top.mapped.a: expected float, found '1'"),
        ({"either": 1.5}, "top.either: expected int or str or NoneType, found 1.5"),
        ({"extra": 1}, "missing: none; unknown: extra"),
    ],
)
def test_wrong_types_and_keys_name_their_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        from_json(Outer, VALID | change, "top")


@pytest.mark.parametrize("text", ["{", '{"a": 1, "a": 2}', "[NaN]", "[" * 100_000, b"\xff\xfe", "1" * 5000])
def test_hostile_json_is_one_error(text: str | bytes) -> None:
    with pytest.raises(EngineError, match="top: expected JSON"):
        parse_json(text, "top")
