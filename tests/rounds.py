"""How many rounds tests of random inputs run: a quarter of them, and all of them with ``--all-combinations``."""

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

_First = TypeVar("_First")
_Second = TypeVar("_Second")

_ALL_ROUNDS = "TRTLLM_LITE_ALL_ROUNDS"  # also read by C++ test programs
_SHARE = 4


def configure(config: pytest.Config) -> None:
    """Tell this process and its children whether all rounds run; must be called before tests are imported."""
    if config.getoption("all_combinations"):
        os.environ[_ALL_ROUNDS] = "1"


def all_run() -> bool:
    """Whether all rounds run."""
    return _ALL_ROUNDS in os.environ


def rounds(count: int) -> int:
    """How many of ``count`` rounds run."""
    return count if all_run() else -(-count // _SHARE)


def in_turn(firsts: Sequence[_First], seconds: Sequence[_Second]) -> list[tuple[_First, _Second]]:
    """Each of ``firsts`` with one of ``seconds``, chosen in turn; with each of them if all rounds run."""
    turns = range(len(seconds) if all_run() else 1)
    return [(first, seconds[(place + turn) % len(seconds)]) for place, first in enumerate(firsts) for turn in turns]
