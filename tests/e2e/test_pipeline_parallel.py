"""Engines of several stages compute what the engine of one stage computes, on CPUs with threads for each stage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.test_tensor_parallel import EVEN, LIMITS, checkpoint_of, two_steps
from tests.models import NETWORK_FAMILIES
from tests.tolerances import assert_close
from trtllm_lite import _core
from trtllm_lite.builder import build_engine
from trtllm_lite.engine.reader import read_engine


def opened(directory: Path, **options: Any) -> Any:
    names = read_engine(directory).manifest.engine_files
    return _core.open_executor([_core.Engine(str(directory / name)) for name in names], **options)


@pytest.mark.parametrize("family", NETWORK_FAMILIES)
def test_stages_compute_what_one_computes(family: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(family, tmp_path)
    build_engine(checkpoint, tmp_path / "one", **LIMITS)
    build_engine(checkpoint, tmp_path / "many", pp_size=2, **LIMITS)
    groups = len(read_engine(tmp_path / "one").manifest.kv_cache.groups)
    one, many = (two_steps(opened(tmp_path / name), groups) for name in ("one", "many"))
    for expected, found in zip(one, many, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("family", ["llama", "gemma3", "cohere"])
def test_ranks_share_out_the_layers_of_each_stage(family: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(family, tmp_path)
    build_engine(checkpoint, tmp_path / "one", **LIMITS)
    build_engine(checkpoint, tmp_path / "many", pp_size=2, tp_size=2, **LIMITS)
    groups = len(read_engine(tmp_path / "one").manifest.kv_cache.groups)
    one, many = (two_steps(opened(tmp_path / name), groups) for name in ("one", "many"))
    for expected, found in zip(one, many, strict=True):
        assert_close(found, expected)
