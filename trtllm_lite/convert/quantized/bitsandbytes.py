"""bitsandbytes (``quant_method: bitsandbytes``): NF4 and FP4 (arXiv 2305.14314), and LLM.int8() (arXiv 2208.07339).

Four bits: ``weight`` uint8 [out * in / 2, 1] has two codes in each byte, the first in the high bits; ``weight.absmax``
a factor for each block of consecutive elements, ``weight.quant_map`` [16] the number of each code. With double
quantization ``absmax`` are codes themselves, of ``weight.nested_quant_map`` [256], with factors ``nested_absmax`` and
an offset. Sizes are in ``weight.quant_state.bitsandbytes__nf4``, a JSON object. The 16 numbers of a code are not evenly
spaced, so that no kernel multiplies codes: these matrices are expanded, as bitsandbytes itself does in every step.

Eight bits: ``weight`` int8 [out, in], ``SCB`` [out] the largest magnitude of each row, which 127 stands for.
https://github.com/bitsandbytes-foundation/bitsandbytes, bitsandbytes/functional.py.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.quantized.layer import ExpandedMatrix, Layer, Matrix
from trtllm_lite.convert.quantized.method import Method
from trtllm_lite.errors import shown
from trtllm_lite.network.blocks import Blocks

# Settings that tell how the weights were found or are computed, or repeat what the tensors show.
_NEUTRAL = """
    load_in_4bit load_in_8bit _load_in_4bit _load_in_8bit bnb_4bit_compute_dtype bnb_4bit_quant_type
    bnb_4bit_use_double_quant bnb_4bit_quant_storage llm_int8_threshold llm_int8_skip_modules
    llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight
"""
_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_INT8_TOP = np.float32(127)


class Bitsandbytes(Method):
    """Layers with codes of four bits, or with rows of int8."""

    description = "bitsandbytes, weights only"

    def __init__(self, fields: ConfigFields) -> None:
        """Take the settings."""
        for key in _NEUTRAL.split():
            fields.take(key)

    def matrices(self, layer: Layer) -> Mapping[str, Matrix | ExpandedMatrix]:
        """Implements :meth:`Method.matrices`."""
        if "SCB" in layer.tensors:
            return {"weight": _rows_of_int8(layer)}
        return {"weight": _codes(layer)} if "weight.absmax" in layer.tensors else {}


def _rows_of_int8(layer: Layer) -> Matrix:
    shape = layer.find("weight", ("int8",), 2).shape
    layer.expect("SCB", shape[:1], "float32")
    stored = ["weight", "SCB"]
    if "weight_format" in layer.tensors:
        layer.expect("weight_format", ())
        if layer.load("weight_format") != 0:
            raise layer.error("expected a weight_format of 0 (rows), found another: save the model again")
        stored.append("weight_format")
    parts = {"weight": lambda: layer.load("weight"), "weight_scale": lambda: layer.load("SCB")[:, None] / _INT8_TOP}
    return Matrix(shape, Blocks("int8", shape[1], "float32"), parts, tuple(stored))


def _codes(layer: Layer) -> ExpandedMatrix:
    state_name = next((name for name in _STATES if name in layer.tensors), _STATES[0])
    layer.find(state_name, ("uint8",), 1)
    state = _read_state(layer, state_name)
    rows, depth = state["shape"]
    layer.expect("weight", (-(-rows * depth // 2), 1), "uint8")
    layer.expect("weight.quant_map", (16,), "float32")
    blocks = -(-rows * depth // state["blocksize"])
    layer.expect("weight.absmax", (blocks,))

    def expand() -> NDArray[np.float32]:
        stored = layer.load("weight").reshape(-1)
        codes = np.stack([stored >> 4, stored & 15], -1).reshape(-1)[: rows * depth]
        factors = np.repeat(_factors(layer, state), state["blocksize"])[: rows * depth]
        return (layer.load("weight.quant_map")[codes] * factors).reshape(rows, depth)

    nested = [f"weight.nested_{name}" for name in ("absmax", "quant_map")] if "nested_blocksize" in state else []
    stored = ("weight", "weight.absmax", "weight.quant_map", state_name, *nested)
    return ExpandedMatrix((rows, depth), expand, stored)


def _read_state(layer: Layer, name: str) -> dict[str, Any]:
    """The sizes of a matrix. Raises ConvertError."""
    text = layer.load(name).tobytes()
    try:
        state = json.loads(text)
        sizes = [*state["shape"], state["blocksize"], state.get("nested_blocksize", 1)]
        float(state.get("nested_offset", 0))
        if len(sizes) == 4 and all(isinstance(size, int) and size > 0 for size in sizes):
            return {"nested_offset": 0, **state}
    except (ValueError, KeyError, TypeError):
        pass
    raise layer.error(f"expected a JSON object with shape [out, in] and blocksize in {name}, found {shown(text)}")


def _factors(layer: Layer, state: Mapping[str, Any]) -> NDArray[np.float32]:
    """The factor of each block."""
    absmax = layer.load("weight.absmax")
    if "nested_blocksize" not in state:
        return absmax.astype(np.float32)
    layer.expect("weight.nested_quant_map", (256,), "float32")
    layer.expect("weight.nested_absmax", (-(-len(absmax) // state["nested_blocksize"]),), "float32")
    outer = np.repeat(layer.load("weight.nested_absmax"), state["nested_blocksize"])[: len(absmax)]
    return layer.load("weight.nested_quant_map")[absmax] * outer + np.float32(state["nested_offset"])
