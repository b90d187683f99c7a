"""Calibration on the card finds what it finds on the CPU, but for the rounding of activations to 16 bits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.e2e.test_calibration import inputs_of, settings
from tests.gpu.test_engine import SHAPE, in_words_of
from tests.models import save_tiny_model
from tests.tolerances import GPU_TOLERANCES, assert_close
from trtllm_lite.builder import open_checkpoint
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.quantize.kv_cache import find_attentions, keys_and_values
from trtllm_lite.stages.calibration import statistics_of


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_statistics_are_those_of_the_cpu(family: str, dtype: str, tmp_path: Path) -> None:
    save_tiny_model(family, tmp_path / "model", dtype=getattr(torch, dtype), **in_words_of(family, SHAPE))
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype)
    checkpoint, on_cpu = open_checkpoint(tmp_path / "checkpoint"), settings(tmp_path)
    inputs = inputs_of(checkpoint) | keys_and_values(find_attentions(checkpoint.model.graph))
    on_gpu = replace(on_cpu, device="cuda")
    with (
        statistics_of(checkpoint, inputs, on_cpu, True, lambda *_: None) as expected,
        statistics_of(checkpoint, inputs, on_gpu, True, lambda *_: None) as found,
    ):
        for name in inputs:
            tensors = expected.read(name).tensors()
            for key, value in found.read(name).tensors().items():
                assert_close(np.array(value), tensors[key], dtype, f"{name} {key}", GPU_TOLERANCES)
