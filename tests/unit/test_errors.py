"""Messages quote values from outside in a bounded form that is free of control characters."""

import pytest

from trtllm_lite.errors import shown


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no name")


@pytest.mark.parametrize("value", [0, -1, 2.5, None, True, "cpu", [1, 2], {"a": 1}, ("x",)])
def test_short_values_are_quoted_as_they_are(value: object) -> None:
    assert shown(value) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        *("x" * 300_000, ["x" * 300_000] * 7, list(range(10**6)), dict.fromkeys(range(50), "y" * 900), b"z" * 10_000),
        *(10**400, -(10**5000), Unprintable(), [[[[[["deep"]]]]]] * 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_long_values_are_cut(value: object) -> None:
    assert len(shown(value)) <= 500


def test_terminal_escapes_are_escaped() -> None:
    assert shown("\x1b[2Jname\0\n") == r"'\x1b[2Jname\x00\n'"
