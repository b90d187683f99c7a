"""Turns tensors of a GGUF file into tensors of Hugging Face: names, shapes, order of rows, plain types."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import DTYPES, PLAIN_DTYPES
from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.gguf.blocks import kind_of
from trtllm_lite.convert.gguf.names import roles_of
from trtllm_lite.convert.gguf.tiles import HeadTiles
from trtllm_lite.convert.parts.moe import MAX_EXPERTS
from trtllm_lite.convert.sources.safetensors_file import TensorInfo
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.blocks import Blocks
from trtllm_lite.network.dtypes import NUMPY
from trtllm_lite.network.weight_expression import halves_from_pairs

_RANK_BY_HEAD = 3
_ONE_ROW = ("shared_expert_gate",)  # matrices of one row that may be stored as vectors
MAX_EXPERT_MATRICES = 3 * MAX_EXPERTS
# Types in which tensors are best stored: float16 for quantized blocks (integers with float16 scales), else the type
# itself.
_PLAIN_TYPES = {DTYPES[name].stored: name for name in PLAIN_DTYPES}
_QUANTIZED_DTYPE = "float16"


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of the file: ``raw`` is the reader's object, ``name`` Hugging Face's name.

    ``interleaved_heads`` is the number of heads whose rows were interleaved for RoPE, ``parted_heads`` the numbers of
    query heads and of key/value heads whose queries, keys and values were separated; ``offset`` is the amount by which
    the stored values are too large. With ``is_row`` a vector stands for a matrix of one row. An ``is_decay`` tensor
    holds -exp(a) of the values a, an ``is_squeezed`` one is a convolution of which axes of 1 may be absent, ``form`` is
    the shape of a tensor whose axes differ from the source's, and ``tiles`` says how heads were reordered.
    """

    raw: Any
    name: str
    transposed: bool = False
    interleaved_heads: int = 0
    parted_heads: tuple[int, int] | None = None
    offset: float = 0.0
    is_row: bool = False
    is_decay: bool = False
    is_squeezed: bool = False
    form: tuple[int, ...] = ()
    tiles: HeadTiles | None = None

    @classmethod
    def all_of(cls, raw: Any, family: Family, config: dict[str, Any]) -> "list[GgufTensor]":
        """Return ``raw``; if it stacks a layer's experts or other matrices, each matrix or bias, read on its own."""
        tensor = cls.of(raw, family, config)
        declared = family.gguf or Gguf("")
        counts = {f"{family.tensor_names[role]}.weight": count for role, count in declared.stacked.items()}
        experts = counts.get(tensor.name, config.get("num_experts"))
        rank = 2 if tensor.name.endswith(".bias") else 3
        if "{expert}" not in tensor.name or len(raw.shape) != rank or raw.shape[-1] != experts:
            return [tensor]
        return [
            replace(
                tensor,
                raw=raw._replace(data=raw.data[expert], shape=raw.shape[:-1]),
                name=tensor.name.format(expert=expert),
            )
            for expert in range(experts)
        ]

    @classmethod
    def of(cls, raw: Any, family: Family, config: dict[str, Any]) -> "GgufTensor":
        """Make the tensor for ``raw`` as ``family`` names it; without a role it keeps its name, and counts as unused.

        The name of a tensor that stacks the matrices of all experts has {expert} in place of an expert's number.
        """
        declared = family.gguf or Gguf("")
        stem, suffix = re.sub(r"^blk\.\d+\.", "blk.{layer}.", raw.name), "weight"
        role = roles_of(declared).get(stem)
        if role not in declared.without_suffix:
            stem, _, suffix = stem.rpartition(".")
            role = roles_of(declared).get(stem)
        names, layer = _names_of(raw.name, family, config)
        if role is None or role not in names:
            return cls(raw, raw.name)
        num_heads = _integer(config.get("num_attention_heads"))
        kv_heads = _integer(config.get("num_key_value_heads", num_heads))
        interleaved = {"q_proj": num_heads, "k_proj": _integer(config.get("num_key_value_heads"))}.get(role, 0)
        return cls(
            raw,
            _name(names[role], layer) + ("" if role in declared.bare else f".{suffix}"),
            transposed=role in declared.transposed and suffix == "weight",
            interleaved_heads=interleaved if declared.interleaved_rope else 0,
            parted_heads=(num_heads, kv_heads) if declared.qkv_apart and role == "qkv_proj" else None,
            offset=1.0 if suffix == "weight" and _adds_one(role, declared) else 0.0,
            is_row=role in _ONE_ROW and len(raw.shape) == 1,
            is_decay=role in declared.decays,
            is_squeezed=role in declared.squeezed and suffix == "weight",
            form=declared.forms.get(role, ()),
            tiles=HeadTiles.of(role, declared.tiled_heads[role], config) if role in declared.tiled_heads else None,
        )

    @property
    def info(self) -> TensorInfo:
        """The type in which the tensor is best stored, and Hugging Face's shape."""
        dtype, shape = _PLAIN_TYPES.get(self.raw.tensor_type.name, _QUANTIZED_DTYPE), _shape(self.raw)
        if self.is_row:
            shape = (1, *shape)
        if self.is_squeezed:
            shape = (math.prod(shape[:-1]), 1, shape[-1])
        if self.form:
            shape = tuple(math.prod(shape) if extent == -1 else extent for extent in self.form)
        return TensorInfo(dtype, shape[::-1] if self.transposed else shape)

    @property
    def blocks(self) -> Blocks | None:
        """The form of the blocks of a matrix that may stay in blocks; None for other tensors."""
        kind = None if self.transposed or self.offset else kind_of(self.raw)
        if kind is None or (self.tiles is not None and not self.tiles.fits_blocks(kind.blocks.block_size)):
            return None
        return kind.blocks

    def read(self, part: str = "") -> NDArray:
        """The values: a view for plain types, float32 for quantized ones; or a part of a matrix in blocks."""
        values = self._part(part) if part else expand(self.raw)
        if self.is_row:
            values = values[None]
        if self.transposed:
            values = values.T
        if self.interleaved_heads:
            values = halves_from_pairs(values, self.interleaved_heads)
        if self.parted_heads is not None:
            values = _joined_heads(values, *self.parted_heads)
        if self.tiles is not None:
            values = self.tiles.undone(values)
        if self.is_squeezed:
            values = values.reshape(-1, 1, values.shape[-1])
        if self.form:
            values = values.reshape(self.form)
        if self.is_decay:
            return self._logarithm(values.astype(np.float32))
        return values.astype(np.float32) - np.float32(self.offset) if self.offset else values

    def _logarithm(self, values: NDArray) -> NDArray:
        if not (values < 0).all():
            raise ConvertError(
                f"expected negative numbers in {self.raw.name}, by which states decay, found {values.max()}: "
                "download the file again"
            )
        return np.log(-values)

    def _part(self, part: str) -> NDArray:
        kind = kind_of(self.raw)
        assert kind is not None
        return kind.parts(self.raw.data)[part]


@dataclass(frozen=True)
class TensorByHead:
    """A matrix that the file splits by head: the ``first`` rows of each head, [heads, columns, rows], and ``others``.

    The others are [heads, rows, columns]; ``name`` is Hugging Face's name.
    """

    first: GgufTensor
    others: GgufTensor
    name: str
    blocks: None = None

    @property
    def info(self) -> TensorInfo:
        """The type in which the tensor is best stored, and its shape."""
        first, others = self.first.info, self.others.info
        heads, rows, columns = others.shape
        return TensorInfo(others.dtype, (heads * (first.shape[-1] + rows), columns))

    def read(self, part: str = "") -> NDArray:
        """The values."""
        del part
        first, others = self.first.read(), self.others.read()
        rows = np.concatenate([first.swapaxes(1, 2), others], axis=1)
        return rows.reshape(-1, rows.shape[-1])


@dataclass(frozen=True)
class ListedNumber:
    """A number of one layer in a list of metadata, as a tensor of ``shape`` with Hugging Face's ``name``."""

    number: float
    name: str
    shape: tuple[int, ...]
    blocks: None = None

    @property
    def info(self) -> TensorInfo:
        """The type and the shape."""
        return TensorInfo("float32", self.shape)

    def read(self, part: str = "") -> NDArray:
        """The value."""
        del part
        return np.full(self.shape, self.number, np.float32)


Named: TypeAlias = "GgufTensor | TensorByHead | ListedNumber"


def listed_numbers(metadata: Mapping[str, Any], family: Family, config: Mapping[str, Any]) -> Iterator[ListedNumber]:
    """The tensors that a file has as lists in its ``metadata``. Raises ConvertError for lists of another length."""
    layers = _integer(config.get("num_hidden_layers"))
    for key, role in (family.gguf.listed if family.gguf else {}).items():
        numbers = metadata.get(key)
        if not isinstance(numbers, list) or len(numbers) != layers or not all(type(n) in (int, float) for n in numbers):
            raise ConvertError(f"expected {key} to have a number for each of {layers} layers, found {shown(numbers)}")
        shape = (1,) if role.startswith("alpha") else ()
        for layer, number in enumerate(numbers):
            yield ListedNumber(number, _name(family.tensor_names[role], str(layer)), shape)


def named_tensors(raw: Mapping[str, Any], family: Family, config: dict[str, Any]) -> Iterator[Named]:
    """The tensors of a file as ``family`` names them."""
    declared = family.gguf or Gguf("")
    left = dict(raw) if "qkv_proj" in family.tensor_names else _unfused(raw, config)
    yield from _by_head(left, family, declared)
    for stored in left.values():
        yield from GgufTensor.all_of(stored, family, config)


def _unfused(raw: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Split a tensor ``raw`` of queries, keys and values into three, as in most families.

    Files of the first GLM-4 have such tensors, and files that llama.cpp's converter wrote with --fuse-qkv.
    """
    heads = _integer(config.get("num_attention_heads"))
    kv_heads = _integer(config.get("num_key_value_heads", heads))
    size = _integer(config.get("head_dim")) or _integer(config.get("hidden_size")) // max(heads, 1)
    ends = [heads * size, (heads + kv_heads) * size, (heads + 2 * kv_heads) * size]
    parts: dict[str, Any] = {}
    for name, tensor in raw.items():
        fused = re.fullmatch(r"(blk\.\d+\.attn_)qkv(\.(?:weight|bias))", name)
        if fused is None or tensor.shape[-1] != ends[-1]:
            parts[name] = tensor
            continue
        for kind, begin, end in zip("qkv", [0, *ends], ends, strict=False):
            own = f"{fused[1]}{kind}{fused[2]}"
            shape = np.array([*tensor.shape[:-1], end - begin], tensor.shape.dtype)
            parts[own] = tensor._replace(name=own, data=tensor.data[begin:end], shape=shape)
    return parts


def _by_head(left: dict[str, Any], family: Family, declared: Gguf) -> Iterator[TensorByHead]:
    """Take the parts of matrices that are split by head out of ``left``, and join them."""
    for role, stems in declared.by_head.items():
        first = re.compile(re.escape(f"{stems[0]}.weight").replace(re.escape("{layer}"), r"(\d+)"))
        for number in [match for name in left if (match := first.fullmatch(name))]:
            names = [f"{stem}.weight".format(layer=number.group(1)) for stem in stems]
            parts = [left[name] for name in names if name in left and len(left[name].shape) == _RANK_BY_HEAD]
            if len(parts) == len(names) and _fit(*map(_shape, parts)):
                for name in names:
                    del left[name]
                halves = [GgufTensor(part, part.name) for part in parts]
                yield TensorByHead(halves[0], halves[1], f"{_name(family.tensor_names[role], number[1])}.weight")


def _fit(first: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether both have equally many heads and columns."""
    return (first[0], first[1]) == (others[0], others[2])


def check_types(path: Path, tensors: Iterable[Any]) -> None:
    """Raise ConvertError for tensors of types that the ``gguf`` package cannot expand, or of impossible shapes."""
    unknown = []
    for tensor in tensors:
        try:
            _expand_rows(tensor.data[:1], tensor.tensor_type)
        except NotImplementedError:
            unknown.append(f"{tensor.name} ({tensor.tensor_type.name})")
        except (IndexError, ValueError) as error:
            raise ConvertError(
                f"the tensor {tensor.name} of {path} has a shape that does not fit its type: download the file again"
            ) from error
    if unknown:
        listed = ", ".join(sorted(unknown))
        raise ConvertError(f"{path} holds tensors of types that cannot be read: {listed}: take another file")


def check_num_experts(path: Path, tensors: Iterable[Any], config: Mapping[str, Any]) -> None:
    """Raise ConvertError for more matrices of experts than models have."""
    experts = _integer(config.get("num_experts"))
    stacks = sum(len(tensor.shape) == 3 for tensor in tensors)
    if experts * stacks > MAX_EXPERT_MATRICES:
        raise ConvertError(
            f"expected at most {MAX_EXPERT_MATRICES} matrices of experts in {path}, found {stacks} tensors of "
            f"{experts} each: download it again"
        )


def expand(tensor: Any) -> NDArray:
    """The values of the reader's tensor: a view for plain types, float32 for quantized ones."""
    return _expand_rows(tensor.data, tensor.tensor_type).reshape(_shape(tensor))


def _joined_heads(rows: NDArray, num_heads: int, kv_heads: int) -> NDArray:
    """The ``rows`` of all queries, all keys and all values in another order: those of each key/value head together.

    Rows that these heads cannot share out keep their order; the family then names the shape that it expects.
    """
    total = num_heads + 2 * kv_heads
    if kv_heads < 1 or num_heads % kv_heads or len(rows) % total:
        return rows
    size = len(rows) // total
    parts = np.split(rows, [num_heads * size, (num_heads + kv_heads) * size])
    by_head = [part.reshape(kv_heads, -1, *rows.shape[1:]) for part in parts]
    return np.concatenate(by_head, 1).reshape(rows.shape)


def _adds_one(role: str, declared: Gguf) -> bool:
    return declared.norms_plus_one and role.endswith("norm") and role not in declared.plain_norms


def _names_of(stored: str, family: Family, config: Mapping[str, Any]) -> tuple[Mapping[str, str], str]:
    """The names by role among which a tensor ``stored`` in a file is, and the number of its layer, "" without one.

    Layers that draft (MTP) come after the others and are counted on their own.
    """
    found = re.match(r"blk\.(\d{1,9})\.", stored)
    if found is None:
        return family.tensor_names, ""
    drafting = config.get(family.gguf.drafting_layers) if family.gguf else None
    place = int(found[1]) - _integer(config.get("num_hidden_layers"))
    if family.predictor is None or not 0 <= place < _integer(drafting):
        return family.tensor_names, found[1]
    return family.predictor.tensor_names, str(place)


def _name(pattern: str, layer: str) -> str:
    return pattern.format(layer=layer, expert="{expert}")


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _shape(tensor: Any) -> tuple[int, ...]:
    """The shape of the reader's tensor, slowest dimension first; GGUF lists the fastest first."""
    return tuple(int(extent) for extent in reversed(tensor.shape))


def _expand_rows(data: NDArray, kind: Any) -> NDArray:
    if kind.name in _PLAIN_TYPES:
        return np.asarray(data).view(NUMPY[_PLAIN_TYPES[kind.name]])
    return gguf.quants.dequantize(data, kind)
