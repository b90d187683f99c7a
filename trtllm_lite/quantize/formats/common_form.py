"""Brings matrices of several forms into one, so that an engine can join them: a GGUF file may mix types within a layer.

Nothing is rounded. Integers become int8 with the shortest of all block sizes; any other mix becomes float32.
"""

from collections.abc import Sequence
from math import gcd

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.dtypes import ONNX
from trtllm_lite.network.tensors import extents, lazy
from trtllm_lite.quantize.formats.format import StoredMatrix, derived
from trtllm_lite.quantize.formats.int8 import Int8
from trtllm_lite.quantize.formats.plain import Plain

_INTEGERS = tuple(ONNX[name] for name in ("int8", "int4", "uint4"))


def in_one_form(matrices: Sequence[StoredMatrix]) -> list[StoredMatrix]:
    """Return ``matrices``, whose rows have equal lengths, in one form; unchanged if they share one already."""
    if len({matrix.form for matrix in matrices}) == 1:
        return list(matrices)
    if any(matrix.tensor("weight").dtype not in _INTEGERS for matrix in matrices):
        return [_as_floats(matrix) for matrix in matrices]
    blocks = [matrix.shape[-1] // extents(matrix.tensor("weight_scale"))[-1] for matrix in matrices]
    numbers = {
        matrix.tensor(name).dtype for matrix in matrices for name in matrix.operands if name.startswith("weight_")
    }
    dtype = numbers.pop() if len(numbers) == 1 else ONNX["float32"]
    with_offset = any("weight_offset" in matrix.operands for matrix in matrices)
    return [_as_int8(matrix, gcd(*blocks), dtype, with_offset) for matrix in matrices]


def _tensors(matrix: StoredMatrix) -> list[ir.TensorProtocol]:
    return [matrix.tensor(operand) for operand in matrix.operands]


def _floats(matrix: StoredMatrix) -> np.ndarray:
    return matrix.format.dequantize({name: matrix.tensor(name).numpy() for name in matrix.operands})


def _as_floats(matrix: StoredMatrix) -> StoredMatrix:
    tensor = lazy(lambda: _floats(matrix), ONNX["float32"], matrix.shape, _tensors(matrix))
    return StoredMatrix(Plain(), {"weight": derived(f"{matrix.operands['weight'].name}.float32", tensor)})


def _as_int8(matrix: StoredMatrix, block: int, dtype: ir.DataType, with_offset: bool) -> StoredMatrix:
    """``matrix`` with shorter blocks, and with offsets of zero if it has none."""
    shape = (*matrix.shape[:-1], matrix.shape[-1] // block)

    def numbers(operand: str) -> ir.LazyTensor:
        def load() -> np.ndarray:
            found = matrix.tensor(operand).numpy().astype(dtype.numpy())
            return np.repeat(found, shape[-1] // found.shape[-1], axis=-1)

        return lazy(load, dtype, shape, _tensors(matrix))

    def elements() -> np.ndarray:
        return matrix.tensor("weight").numpy().astype(np.int8)

    weight = lazy(elements, ONNX["int8"], matrix.shape, _tensors(matrix))
    tensors = {"weight": weight, "weight_scale": numbers("weight_scale")}
    if "weight_offset" in matrix.operands:
        tensors["weight_offset"] = numbers("weight_offset")
    elif with_offset:
        tensors["weight_offset"] = lazy(lambda: np.zeros(shape, dtype.numpy()), dtype, shape)
    name = matrix.operands["weight"].name
    return StoredMatrix(Int8(), {part: derived(f"{name}.as_int8.{part}", tensor) for part, tensor in tensors.items()})
