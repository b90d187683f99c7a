"""Weights of a checkpoint, which stay on disk until the engine is written."""

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trtllm_lite.errors import EngineError
from trtllm_lite.network.tensors import lazy

PLAN_DTYPES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.INT32: "int32",
    ir.DataType.INT8: "int8",
}


def stored(path: Path, offset: int, dtype: ir.DataType, shape: Sequence[int]) -> ir.LazyTensor:
    """A tensor at byte ``offset`` of a file, little-endian, row-major."""
    num_bytes = prod(shape) * dtype.itemsize

    def load() -> np.ndarray:
        try:
            data = np.fromfile(path, dtype=np.uint8, count=int(num_bytes), offset=offset)
        except OSError as error:
            raise EngineError(
                f"cannot read weights from {path}: {error.strerror}: check the file and its rights"
            ) from error
        if data.size != num_bytes:
            raise EngineError(f"expected {num_bytes} bytes at {offset} of {path}, found {data.size}: convert again")
        return data.view(dtype.numpy()).reshape(shape)

    return lazy(load, dtype, shape)


def absent(name: str, dtype: ir.DataType, shape: Sequence[int]) -> ir.LazyTensor:
    """A tensor of a model that has a shape and no weights."""

    def load() -> np.ndarray:
        raise EngineError(f"a model config has no weights, {name} was asked for: pass a checkpoint or --strip_plan")

    return lazy(load, dtype, shape)
