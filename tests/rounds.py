"""How many rounds tests of random inputs run: a quarter of them, and all of them with ``--all-combinations``."""

import os

import pytest

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
