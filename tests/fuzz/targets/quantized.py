"""Quantized Hugging Face checkpoints through convert: settings changed, tensors missing or of another type or shape."""

import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.documents import mutated
from tests.fuzz.model_files import CONFIG, LAYERS, tensors, write_model
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.sources.safetensors_file import TensorInfo, plan_layout, write_safetensors
from trtllm_lite.network.dtypes import NUMPY

COUNT = 120
_GROUP = 8
_Tensors = dict[str, np.ndarray]


def _int32(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2**31, shape, np.int32)


def _fp8(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 126, shape).astype(np.uint8).view(NUMPY["float8_e4m3fn"])


def _gptq(out: int, depth: int) -> _Tensors:
    groups = depth // _GROUP
    return {
        "qweight": _int32(depth // 8, out),
        "qzeros": _int32(groups, out // 8),
        "scales": np.ones((groups, out), np.float16),
        "g_idx": np.random.default_rng(1).permutation(depth).astype(np.int32) // _GROUP,
    }


def _packed(out: int, depth: int) -> _Tensors:
    return {
        "weight_packed": _int32(out, depth // 8),
        "weight_scale": np.ones((out, depth // _GROUP), np.float16),
        "weight_shape": np.array([out, depth], np.int64),
    }


def _fp8_static(out: int, depth: int) -> _Tensors:
    scales = {name: np.full((), 0.5, np.float32) for name in ("weight_scale", "input_scale")}
    return {"weight": _fp8(out, depth), **scales}


def _fp8_tiles(out: int, depth: int) -> _Tensors:
    return {"weight": _fp8(out, depth), "weight_scale_inv": np.ones((1, 1), np.float32)}


def _mxfp4(out: int, depth: int) -> _Tensors:
    return {
        "weight_packed": np.zeros((out, depth // 2), np.uint8),
        "weight_scale": np.full((out, -(-depth // 32)), 120, np.uint8),
    }


def _group(layout: str, weights: dict[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": {"targets": ["Linear", "re:.*_proj"], "weights": weights}},
        "kv_cache_scheme": {"type": "float", "num_bits": 8, "strategy": "tensor", "dynamic": False},
    }


_INT4 = {"type": "int", "num_bits": 4, "strategy": "group", "symmetric": True, "dynamic": False, "actorder": None}
METHODS: tuple[tuple[dict[str, Any], Any], ...] = (
    ({"quant_method": "gptq", "bits": 4, "sym": False, "group_size": _GROUP, "desc_act": True}, _gptq),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, _fp8_static),
    ({"quant_method": "fp8", "weight_block_size": [128, 128], "kv_cache_scheme": "static"}, _fp8_tiles),
    (_group("pack-quantized", _INT4), _packed),
    (_group("mxfp4-pack-quantized", {"type": "float", "num_bits": 4, "strategy": "group"}), _mxfp4),
)


class Target:
    """A model whose other files are valid."""

    def __init__(self, scratch: Path) -> None:
        del scratch

    def write(self, rng: random.Random, directory: Path) -> None:
        settings, quantize = rng.choice(METHODS)
        stored: _Tensors = {}
        for name, matrix in tensors().items():
            is_layer = name.endswith("_proj.weight")
            parts = quantize(*matrix.shape) if is_layer else {"weight": matrix}
            stored |= {f"{name.removesuffix('weight')}{part}": array for part, array in parts.items()}
        for layer in range(LAYERS):
            stored |= {f"model.layers.{layer}.self_attn.{what}_scale": np.ones(1, np.float32) for what in "kv"}
        for _ in range(rng.randrange(3)):
            _change(rng, stored)
        write_model(
            directory, CONFIG | {"quantization_config": mutated(rng, settings) if rng.random() < 0.7 else settings}
        )
        infos = {name: TensorInfo(_dtype_of(array), array.shape) for name, array in stored.items()}
        write_safetensors(directory / "model.safetensors", plan_layout(infos), stored.__getitem__)

    def read(self, directory: Path) -> None:
        convert_checkpoint(str(directory), directory / "checkpoint")


def _change(rng: random.Random, stored: _Tensors) -> None:
    """Take one tensor away, or give it another name, type, shape or content."""
    name = rng.choice(sorted(stored))
    array = stored.pop(name)
    match rng.randrange(6):
        case 0:
            stored[name] = array.reshape(-1)
        case 1:
            stored[name] = array.astype(np.float32).astype(rng.choice((np.float32, np.float16, np.int32, np.int8)))
        case 2:
            stored[name] = array[:-1] if array.ndim else array.reshape(1, 1)
        case 3:
            stored[name] = np.full_like(array, rng.choice((0, 1, 100)))
        case 4:
            stored[name.replace(".0.", f".{10 ** rng.randrange(40)}.")] = array
        case _:
            pass


def _dtype_of(array: np.ndarray) -> str:
    return next(name for name, dtype in NUMPY.items() if dtype == array.dtype)
