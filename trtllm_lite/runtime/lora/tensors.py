"""Finds the tensors of a safetensors file, with numpy alone.

Format: 8 bytes little-endian header length, a JSON object {name: {dtype, shape, data_offsets}}, then the data
(https://github.com/huggingface/safetensors). Everything is checked against the file's size before it is used.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.engine.records import parse_json
from trtllm_lite.errors import EngineError, shown

MAX_HEADER_BYTES = 1 << 24  # adapters have some thousand tensors
MAX_EXTENT = 1 << 30
_STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_REMEDY = "save the adapter again with PEFT's save_pretrained"


def read_tensors(data: memoryview) -> dict[str, NDArray[Any]]:
    """Views of all tensors of a file; bfloat16 tensors are uint16. Raises EngineError for a damaged file."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, MAX_HEADER_BYTES):
        raise _damaged(f"a header of {length} bytes in a file of {len(data)}")
    try:
        header = parse_json(bytes(data[8 : 8 + length]), "the header")
    except EngineError as error:
        raise _damaged("a header that is no JSON") from error
    if not isinstance(header, dict):
        raise _damaged("a header that is no object")
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {name: _tensor(name, entry, body) for name, entry in header.items()}


def _tensor(name: str, entry: Any, body: memoryview) -> NDArray[Any]:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if dtype in _STORED:
            stored = np.dtype(_STORED[dtype])
        case {"dtype": dtype, **_others}:
            kinds = ", ".join(_STORED)
            raise _damaged(f"{shown(name)} of type {shown(dtype)}, expected one of {kinds} with a shape and offsets")
        case _:
            raise _damaged(f"the entry {shown(entry)} of {shown(name)}")
    if not all(type(extent) is int and 0 < extent < MAX_EXTENT for extent in shape) or len(shape) > 4:
        raise _damaged(f"{shown(name)} of shape {shown(shape)}")
    if not 0 <= begin <= end <= len(body) or end - begin != math.prod(shape) * stored.itemsize:
        raise _damaged(f"{shown(name)} at bytes {begin} to {end} of {len(body)}")
    return np.frombuffer(body[begin:end], stored).reshape(shape)


def _damaged(found: str) -> EngineError:
    return EngineError(f"expected adapter_model.safetensors to be a whole safetensors file, found {found}: {_REMEDY}")
