"""The network that TensorRT gets, on onnxruntime, against transformers and the network that it was made from."""

import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from tests.models import NETWORK_FAMILIES, round_matrices, tiny_model
from tests.onnx_runner import OnnxRunner
from tests.tolerances import GPU_TOLERANCES, assert_close
from tests.unit.quantize.made_up import made_up
from tests.unit.tensorrt.onnx_steps import OnnxSteps
from tests.unit.tensorrt.shapes import overrides, rewritten, save_checkpoint
from trtllm_lite.network.config import NETWORK_FILE
from trtllm_lite.quantize.network import Recipe, quantize_network

_PROMPTS = ([5, 90, 17, 300, 44, 8, 211, 3, 60], [7, 7, 130, 2])
_GENERATED = [[11, 201], [35, 35], [379, 9]]


@pytest.mark.parametrize("family", NETWORK_FAMILIES)
def test_steps_give_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    """A prompt in two parts and a shorter one, then steps of generation over sequences of unequal lengths."""
    checkpoint = save_checkpoint(tmp_path, family, "float16")
    steps = OnnxSteps(rewritten(checkpoint.model, "float16")[0], tmp_path, batch=2)
    model = round_matrices(tiny_model(family, **overrides(family)), "float16")
    steps.context(0, _PROMPTS[0][:5])
    found = np.stack([steps.context(0, _PROMPTS[0][5:]), steps.context(1, _PROMPTS[1])])
    sequences = [list(prompt) for prompt in _PROMPTS]
    for tokens in _GENERATED:
        assert_close(found, _last_logits(model, sequences), "float16", table=GPU_TOLERANCES)
        found = steps.generation(tokens)
        sequences = [[*sequence, token] for sequence, token in zip(sequences, tokens, strict=True)]
    assert_close(found, _last_logits(model, sequences), "float16", table=GPU_TOLERANCES)


def _last_logits(model: torch.nn.Module, sequences: list[list[int]]) -> np.ndarray:
    with torch.no_grad():
        return np.stack([model(torch.tensor([ids])).logits[0, -1].numpy() for ids in sequences])


_SCHEMES = (
    *("int8_wo", "fp8_wo", "int4_wo", "int4_awq", "int4_gptq", "w4a8_awq"),
    *("fp8", "fp8_gptq", "fp8_rowwise", "fp8_rowwise_gptq", "int8_sq"),
)


@pytest.mark.parametrize("qformat", _SCHEMES)
def test_a_quantized_network_keeps_its_meaning(qformat: str, tmp_path: Path) -> None:
    """The test runs in float32: with 16 bits, activations would round to other 8-bit numbers."""
    checkpoint = save_checkpoint(tmp_path, "llama", "float32")
    (tmp_path / "quantized").mkdir()
    recipe = Recipe(qformat, group_size=32)
    model, _ = quantize_network(checkpoint.model, recipe, made_up(checkpoint.model))
    steps = OnnxSteps(rewritten(model, "float32")[0], tmp_path, batch=2)
    found = np.stack([steps.context(row, prompt) for row, prompt in enumerate(_PROMPTS)])
    ir.save(model, tmp_path / "quantized" / NETWORK_FILE, external_data="weights")
    shutil.copy(tmp_path / "checkpoint" / "config.json", tmp_path / "quantized")
    logits = OnnxRunner(tmp_path / "quantized", 2, 64).step(_PROMPTS)
    assert_close(found, np.stack([of_row[-1] for of_row in logits]))
