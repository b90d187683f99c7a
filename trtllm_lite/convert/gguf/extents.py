"""Checks that a GGUF file is long enough for its tensors; a shorter file was truncated in a download."""

import math
from pathlib import Path

import gguf

from trtllm_lite.common.printable import one_line
from trtllm_lite.convert.gguf.header import TensorEntry, read_tensors
from trtllm_lite.errors import ConvertError


def check_extents(path: Path) -> None:
    """Raise ConvertError if a tensor extends beyond the end of the file, or for the reasons of :func:`check_header`."""
    start, entries = read_tensors(path)
    size = path.stat().st_size
    begins = [(start + entry.offset, entry) for entry in entries]
    cut = [(begin, entry) for begin, entry in begins if begin + _num_bytes(entry) > size]
    if not cut:
        return
    begin, first = min(cut, key=lambda place: place[0])
    needed = max(begin + _num_bytes(entry) for begin, entry in cut)
    raise ConvertError(
        f"expected {path} to be a complete GGUF file of {needed} bytes, found {size}: the tensor "
        f"{one_line(first.name)} has {max(size - begin, 0)} of its {_num_bytes(first)} bytes: download it again"
    )


def _num_bytes(entry: TensorEntry) -> int:
    """The bytes of the tensor's data; 0 for an unknown type, which is refused later."""
    sizes = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    block_elements, block_bytes = sizes.get(entry.kind, (1, 0))
    return math.prod(entry.shape) // block_elements * block_bytes
