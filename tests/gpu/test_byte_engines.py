"""FP8 and INT8 engines on the card: logits of transformers with weights, activations and caches rounded alike."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from tests.gpu.test_engine import LIMITS, SHAPE, Case, check_logits, make_case, prompts
from tests.models import quantize_linear_layers, tiny_model
from tests.quantized_writer import LAYOUTS, write_mxfp4_experts, write_quantized
from tests.tolerances import BYTE_TOLERANCES
from trtllm_lite.builder import build_engine
from trtllm_lite.common.vocabulary import KV_CACHE_DTYPES
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner

SCALE = 0.03125
CACHES = [("llama", 64), ("llama", 128), ("qwen3", 96), ("gemma2", 256)]


class RoundingCache(DynamicCache):
    """A cache whose values, and keys unless they are plain, are rounded to ``rounded_to`` under SCALE."""

    rounded_to: str
    plain_keys: bool

    def update(self, keys: torch.Tensor, values: torch.Tensor, *rest: Any, **more: Any) -> tuple[torch.Tensor, ...]:
        stored = keys if self.plain_keys else self._rounded(keys)
        return super().update(stored, self._rounded(values), *rest, **more)

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        if self.rounded_to == "int8":
            return (x / SCALE).round().clamp(-128, 127) * SCALE
        return (x / SCALE).clamp(-448, 448).to(torch.float8_e4m3fn).float() * SCALE


@dataclass
class CachedCase(Case):
    """A case whose reference reads a :class:`RoundingCache`."""

    rounded_to: str
    plain_keys: bool

    def reference_logits(self, tokens: np.ndarray) -> np.ndarray:
        ids = torch.from_numpy(tokens).long()[None]
        with torch.no_grad():
            cache = RoundingCache(config=self.reference.config)
            cache.rounded_to, cache.plain_keys = self.rounded_to, self.plain_keys
            return self.reference(ids, past_key_values=cache, use_cache=True).logits[0].numpy()


@pytest.mark.parametrize("plain_keys", [False, True], ids=["keys of bytes", "keys of 16 bits"])
@pytest.mark.parametrize("rounded_to", KV_CACHE_DTYPES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("family", "head_dim"), CACHES)
def test_keys_and_values_in_eight_bits(
    family: str, dtype: str, head_dim: int, rounded_to: str, plain_keys: bool, tmp_path: Path
) -> None:
    how = {"kv_cache": (rounded_to, SCALE), "plain_keys": plain_keys, "head_dim": head_dim}
    made = make_case(family, dtype, tmp_path, **how)
    types = dict.fromkeys([dtype if plain_keys else KV_CACHE_DTYPES[rounded_to], KV_CACHE_DTYPES[rounded_to]])
    assert made.runner.session.manifest.kv_cache.dtype == " and ".join(types)
    case = CachedCase(dtype, made.runner, made.reference, rounded_to, plain_keys)
    for batch_size in (20, 9, 1):
        check_logits(case, prompts()[:batch_size], BYTE_TOLERANCES)


def _round_inputs(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    del module
    (x,) = inputs
    scale = (x.abs().amax(-1, keepdim=True) / 448).clamp_min(1e-30)
    return ((x / scale).to(torch.float8_e4m3fn).float() * scale,)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "gemma2", "starcoder2"])
def test_products_in_eight_bits(family: str, dtype: str, tmp_path: Path) -> None:
    made = make_case(family, dtype, tmp_path, qformat="fp8_rowwise")
    reference = quantize_linear_layers(made.reference, "fp8_wo")
    for name, layer in reference.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            layer.register_forward_pre_hook(_round_inputs)
    case = Case(dtype, made.runner, reference)
    for batch_size in (20, 9, 1):
        check_logits(case, prompts()[:batch_size], BYTE_TOLERANCES)


@pytest.mark.parametrize("kind", ["fp8", "fp8 by row", "int8", "int8 static"])
def test_quantized_checkpoints(kind: str, tmp_path: Path) -> None:
    """Activations are rounded with one scale per layer, or with one per token."""
    layout = LAYOUTS[f"compressed-tensors {kind}"]
    model = write_quantized(tiny_model("llama", **SHAPE, head_dim=16), tmp_path / "model", layout)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **LIMITS, target="sm_90")
    case = Case("bfloat16", ModelRunner.from_dir(tmp_path / "engine"), model.float())
    for batch_size in (20, 9, 1):
        check_logits(case, prompts()[:batch_size], BYTE_TOLERANCES)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["fp8 in tiles", "modelopt mxfp4", "gptq 8 bits", "mxfp4 of gpt-oss"])
def test_experts_stay_as_they_are_stored(layout: str, dtype: str, tmp_path: Path) -> None:
    """Matrices keep the form in which the checkpoint stores them if activations are not rounded."""
    if layout in LAYOUTS:
        sizes = {**SHAPE, "hidden_size": 128, "moe_intermediate_size": 256, "head_dim": 32}
        model = write_quantized(tiny_model("qwen3_moe", **sizes), tmp_path / "model", LAYOUTS[layout])
    else:
        sizes = {**SHAPE, "hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
        model = write_mxfp4_experts(tiny_model("gpt_oss", **sizes), tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype)
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **LIMITS, target="sm_90")
    case = Case(dtype, ModelRunner.from_dir(tmp_path / "engine"), model.float())
    assert not case.runner.session.manifest.expansions
    for batch_size in (20, 9, 1):
        check_logits(case, prompts()[:batch_size])
