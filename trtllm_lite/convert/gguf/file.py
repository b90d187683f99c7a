"""Sources in llama.cpp's GGUF format: one file, or several, with metadata, tokenizer and (mostly quantized) tensors.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, read by the ``gguf`` package. Tensors get Hugging
Face's names and row order. Tensors in quantized blocks can be read as the parts of these blocks, or expanded to
float32.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.gguf_parts import parts_of
from trtllm_lite.convert.family import Family, all_families
from trtllm_lite.convert.gguf.config import read_config
from trtllm_lite.convert.gguf.encoder import embeddings_of
from trtllm_lite.convert.gguf.extents import check_extents
from trtllm_lite.convert.gguf.header import check_header
from trtllm_lite.convert.gguf.metadata import check_metadata, sampling_of
from trtllm_lite.convert.gguf.names import names_in_file
from trtllm_lite.convert.gguf.refusal import ARCHITECTURE, check_architecture, unsupported_value
from trtllm_lite.convert.gguf.tensors import (
    GgufTensor,
    Named,
    check_num_experts,
    check_types,
    expand,
    listed_numbers,
    named_tensors,
)
from trtllm_lite.convert.gguf.tokenizer import read_tokenizer
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.errors import ConvertError, shown

_SOFTMAX = 1  # llama.cpp's number for a router with softmax
_SPLIT_NUMBER, _SPLIT_COUNT = "split.no", "split.count"
_MAX_NAMED = 5
# Names of tensors with divisors of the RoPE frequencies; they become part of the config.
_ROPE_FACTORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")


def open_gguf(path: Path, ignored: IgnoredKeys | None = None) -> Source:
    """Open a GGUF file, or all files of a model if it is one of several, without the ``ignored`` keys.

    Raises ConvertError if a file is damaged, absent, of an unknown architecture, has an unknown tensor type, or needs
    an unsupported feature.
    """
    check_architecture(path)
    metadata, raw = _read_parts(path)
    metadata = (ignored or IgnoredKeys()).without(metadata)
    family = _find_family(path, metadata)
    check_metadata(path, metadata, family.gguf.listed if family.gguf else ())
    check_types(path, raw.values())
    factors = {name: expand(raw.pop(f"{name}.weight")).tolist() for name in _ROPE_FACTORS if f"{name}.weight" in raw}
    with _consistent(path):
        config = read_config(metadata, family, raw, factors)
    check_num_experts(path, raw.values(), config)
    names = frozenset(raw)
    stored = [*named_tensors(raw, family, config), *listed_numbers(metadata, family, config)]
    tensors = {tensor.name: tensor for tensor in stored}
    tokenizer, tokenizer_config = read_tokenizer(metadata)
    return Source(
        description=str(path),
        config=config,
        generation=sampling_of(metadata),
        tensors={name: tensor.info for name, tensor in tensors.items()},
        read=lambda name: tensors[name].read() if name in tensors else _part(tensors, name),
        tokenizer=tokenizer,
        tokenizer_config=tokenizer_config,
        embeddings=embeddings_of(metadata),
        blocks={name: blocks for name, tensor in tensors.items() if (blocks := tensor.blocks) is not None},
        quantization=_quantization(tensors),
        stored_names=partial(names_in_file, family=family, found=names, num_layers=config.get("num_hidden_layers", 0)),
        kinds_key=family.gguf.kinds if family.gguf else "",
    )


def _quantization(tensors: Mapping[str, Named]) -> str:
    """The types of the matrices in blocks; empty if there are none."""
    own = [tensor for tensor in tensors.values() if isinstance(tensor, GgufTensor) and tensor.blocks is not None]
    types = sorted({tensor.raw.tensor_type.name for tensor in own})
    return f"gguf {', '.join(types)}" if types else ""


def _part(tensors: dict[str, Named], name: str) -> NDArray:
    """Read a part of a tensor, by the name that :func:`part_name` makes."""
    tensor, _, part = name.rpartition("/")
    return tensors[tensor].read(part)


class _Reader(gguf.GGUFReader):
    """A reader that holds the mapped file as a plain array, whose slices (one per token) are three times as fast."""

    @property
    def data(self) -> Any:
        """The bytes of the file."""
        return self._bytes

    @data.setter
    def data(self, mapped: Any) -> None:
        self._bytes = mapped.view(np.ndarray)


def _read_parts(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata of the first part, and the tensors of all, by name."""
    parts = parts_of(path)
    absent = [part.name for part in parts if not part.is_file()]
    if absent:
        raise ConvertError(
            f"{path} is one of {len(parts)} files of a model, and {', '.join(absent[:_MAX_NAMED])} "
            f"{'is' if len(absent) == 1 else 'are'} not beside it: download all of them"
        )
    metadata: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for number, part in enumerate(parts):
        check_header(part)
        check_extents(part)
        own, found = _parse(part)
        place, count = own.get(_SPLIT_NUMBER, 0), own.get(_SPLIT_COUNT, 1)
        if (place, count) != (number, len(parts)):
            raise ConvertError(
                f"expected {part} to be file {number + 1} of {len(parts)} of a model, as its name says, found "
                f"{_SPLIT_NUMBER} {shown(place)} and {_SPLIT_COUNT} {shown(count)}: give the files the names with "
                "which they were published"
            )
        if not tensors.keys().isdisjoint(found):
            raise ConvertError(f"{part} holds tensors of another file of the model: download it again")
        metadata = metadata or own
        tensors |= found
    return metadata, tensors


def _parse(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse metadata and tensors (memory maps), by name."""
    try:
        reader = _Reader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # the reader checks little, so damage raises any kind of exception
        raise ConvertError(
            f"expected {path} to be a complete GGUF file, but it cannot be read ({error}): download it again"
        ) from error
    return metadata, {tensor.name: tensor for tensor in reader.tensors}


@contextmanager
def _consistent(path: Path) -> Iterator[None]:
    """Turn exceptions of arithmetic on metadata of wrong types into a ConvertError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConvertError(f"the metadata of {path} is inconsistent ({shown(error)}): download it again") from error


def _find_family(path: Path, metadata: dict[str, Any]) -> Family:
    """Find the family of a file; families of one architecture differ by experts and by the scoring of routers.

    Among the remaining families, the one whose marker the file has wins, else the one without a marker.
    """
    architecture = metadata.get(ARCHITECTURE)
    known = [(family.gguf, family) for family in all_families().values() if family.gguf]
    found = [(gguf, family) for gguf, family in known if architecture in gguf.architectures]
    if not found:
        raise unsupported_value(path, architecture)
    has_experts = bool(metadata.get(f"{architecture}.expert_count"))
    gating = metadata.get(f"{architecture}.expert_gating_func", _SOFTMAX)
    alike = [one for one in found if one[0].has_experts == has_experts and one[0].gating in (None, gating)]
    marked = [one for one in alike if one[0].marker and f"{architecture}.{one[0].marker}" in metadata]
    plain = [one for one in alike if not one[0].marker]
    return [*marked, *plain, *found][0][1]
