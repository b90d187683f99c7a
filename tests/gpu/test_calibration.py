"""Calibration on the card gives the CPU's results, apart from rounding of activations to 16 bits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.e2e.test_calibration import inputs_of, settings
from tests.gpu.test_engine import SHAPE, in_words_of
from tests.models import save_tiny_model
from tests.tolerances import GPU_LOSS, GPU_TOLERANCES, assert_close
from trtllm_lite.builder import Checkpoint, open_checkpoint
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.quantize.kv_cache import find_attentions, keys_and_values
from trtllm_lite.quantize.network import Recipe
from trtllm_lite.workflows.accuracy import measure_accuracy
from trtllm_lite.workflows.calibration import statistics_of
from trtllm_lite.workflows.device import Device
from trtllm_lite.workflows.quantize import quantized


def _converted(family: str, dtype: str, directory: Path) -> Checkpoint:
    shape = in_words_of(family, SHAPE | {"head_dim": 16})
    save_tiny_model(family, directory / "model", dtype=getattr(torch, dtype), **shape)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    return open_checkpoint(directory / "checkpoint")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_statistics_are_those_of_the_cpu(family: str, dtype: str, tmp_path: Path) -> None:
    checkpoint, on_cpu = _converted(family, dtype, tmp_path), settings(tmp_path)
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


def test_the_loss_is_measured_on_the_card(tmp_path: Path) -> None:
    """The loss is close to the CPU's: small random models lose much, and rounded activations change that little."""
    checkpoint, losses = _converted("llama", "bfloat16", tmp_path), []
    devices: tuple[Device, ...] = ("cpu", "cuda")
    for device in devices:
        calibration = replace(settings(tmp_path), device=device)
        with quantized(checkpoint, Recipe("int8_wo"), calibration, lambda *_: None) as quantization:
            losses.append(measure_accuracy(quantization, lambda *_: None))
    on_cpu, on_gpu = losses
    assert on_gpu.num_tokens == on_cpu.num_tokens
    assert on_gpu.reference_perplexity == pytest.approx(on_cpu.reference_perplexity, rel=GPU_LOSS)
    assert on_gpu.perplexity == pytest.approx(on_cpu.perplexity, rel=GPU_LOSS)
