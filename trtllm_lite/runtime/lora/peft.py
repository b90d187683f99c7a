"""Reads an adapter in PEFT's format, and finds the projections of an engine that it changes.

Only adapter_config.json and adapter_model.safetensors of a local directory are read, never a pickle.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.foreign_files import open_foreign
from trtllm_lite.engine.manifest import ModuleRows
from trtllm_lite.errors import EngineError, LimitError, shown
from trtllm_lite.runtime.lora.contents import Contents, digest_of, read_contents
from trtllm_lite.runtime.lora.settings import MAX_CONFIG_BYTES, AdapterSettings, parse_settings
from trtllm_lite.runtime.lora.tensors import read_tensors

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
MAX_WEIGHTS_BYTES = 1 << 34
_KEY = re.compile(r"base_model\.model\.(?P<module>[\w.]{1,256})\.lora_(?P<which>[AB])\.weight")
_AROUND = re.compile(r"^((model|language_model|transformer|backbone)\.)*")

Matrix = NDArray[Any]  # float32, float16, or bfloat16 as uint16, as in the file


class Pair(NamedTuple):
    """The LoRA matrices A [rank, in] and B [out, rank] of a projection, whose weights gain ``scale`` * B @ A."""

    name: str
    a: Matrix
    b: Matrix
    scale: float


class Projections:
    """The projections of an engine that adapters may change, by number, and the modules that they belong to."""

    def __init__(self, rows: Sequence[ModuleRows], shapes: Sequence[tuple[int, int]], max_rank: int) -> None:
        """``rows`` maps each projection to rows of a module's output, ``shapes`` to its [in, out] extents.

        Raises EngineError if the two do not match.
        """
        self.max_rank = max_rank
        self._modules: dict[str, list[Part]] = {}
        fits = len(rows) == len(shapes) and all(own.num_rows == out for own, (_, out) in zip(rows, shapes, strict=True))
        if not fits:
            raise EngineError("the engine's manifest and plan differ in the projections of adapters: build it again")
        for number, (own, (num_in, _)) in enumerate(zip(rows, shapes, strict=True)):
            self._modules.setdefault(_place(own.module), []).append(Part(number, num_in, own.numbers()))
        for module, parts in self._modules.items():
            numbers = np.sort(np.concatenate([part.rows for part in parts]))
            if len({part.num_in for part in parts}) > 1 or (numbers != np.arange(len(numbers))).any():
                raise EngineError(f"the engine's projections of {shown(module)} do not match its rows: build it again")

    def parts_of(self, module: str) -> list["Part"]:
        """The parts of the module with this path in the model. Raises EngineError if the engine has none."""
        parts = self._modules.get(_place(module))
        if parts is not None:
            return parts
        known = sorted({place.rpartition(".")[2] for place in self._modules})
        if module.rpartition(".")[2] in known:
            raise EngineError(
                f"the adapter changes {shown(module)}, and this engine's model has no such layer: take an adapter "
                "of this model"
            )
        raise EngineError(
            f"the adapter changes {shown(module)}, and this engine lets adapters change {', '.join(known)} of its "
            "layers: take an adapter of this model, trained on these modules"
        )


class Part(NamedTuple):
    """A projection of ``num_in`` inputs, whose outputs are ``rows`` of its module's outputs."""

    number: int
    num_in: int
    rows: NDArray[np.int64]

    def of(self, b: Matrix) -> Matrix:
        """The projection's rows of ``b``, the B matrix of its module."""
        return b if np.array_equal(self.rows, np.arange(len(b))) else b[self.rows]


@dataclass(frozen=True)
class AdapterWeights:
    """The ``pairs`` by number of projection; ``key`` is a digest of the adapter's files."""

    pairs: Mapping[int, Pair]
    key: bytes


def read_adapter(directory: Path, projections: Projections, root: Path | None = None) -> AdapterWeights:
    """Read the adapter in ``directory``, whose files have to lie below ``root`` if it is given.

    Raises EngineError for files that are absent, damaged, or of another model, LimitError for a rank above the
    engine's. Infinite and NaN elements are found when the pairs are converted.
    """
    config = _read(directory, CONFIG_FILE, MAX_CONFIG_BYTES, root)
    weights = _read(directory, WEIGHTS_FILE, MAX_WEIGHTS_BYTES, root)
    settings, tensors = parse_settings(bytes(config.data)), read_tensors(weights.data)
    return AdapterWeights(_pairs(tensors, settings, projections), digest_of(config.digest + weights.digest))


def _read(directory: Path, name: str, limit: int, root: Path | None) -> Contents:
    path = directory / name
    try:
        if not directory.is_dir():
            raise EngineError(
                f"there is no directory {shown(str(directory))}: pass one that PEFT's save_pretrained wrote"
            )
        with open_foreign(path, limit, inside=root) as file:
            return read_contents(file.fileno(), os.fstat(file.fileno()).st_size)
    except FileNotFoundError as error:
        raise EngineError(
            f"{shown(str(directory))} has no file {name}: pass a local directory that PEFT's save_pretrained wrote"
        ) from error
    except OSError as error:
        raise EngineError(
            f"cannot read {name} of the adapter: {error.strerror}: check the file and its permissions"
        ) from error


def _pairs(tensors: Mapping[str, Matrix], settings: AdapterSettings, projections: Projections) -> dict[int, Pair]:
    modules: dict[str, dict[str, Matrix]] = {}
    for name, tensor in tensors.items():
        match = _KEY.fullmatch(name)
        if match is None:
            raise EngineError(
                f"the adapter has the tensor {shown(name)}, expected lora_A and lora_B of linear layers alone: train "
                "it without embeddings, biases, DoRA and saved modules, or merge it into the model"
            )
        modules.setdefault(match["module"], {})[match["which"]] = tensor
    if not modules:
        raise EngineError("the adapter has no tensors: save it again with PEFT's save_pretrained")
    pairs: dict[int, Pair] = {}
    for module, matrices in modules.items():
        parts = projections.parts_of(module)
        if parts[0].number in pairs:
            raise EngineError(f"the adapter has {shown(module)} under two names: save the adapter again")
        a, b = _checked(module, matrices, settings.rank_of(module), projections.max_rank, parts)
        name, scale = f"base_model.model.{module}", settings.scale_of(module)
        pairs |= {part.number: Pair(name, a, part.of(b), scale) for part in parts}
    return pairs


def _checked(
    module: str, matrices: Mapping[str, Matrix], rank: int, max_rank: int, parts: Sequence[Part]
) -> tuple[Matrix, Matrix]:
    """The matrices A and B of a module. Raises LimitError for a rank above ``max_rank``, EngineError for a shape."""
    num_in, num_out = parts[0].num_in, sum(len(part.rows) for part in parts)
    if rank > max_rank:
        raise LimitError(
            f"the adapter has rank {rank} at {shown(module)}, above max_lora_rank {max_rank} of this engine: build it "
            f"with --max_lora_rank {-(-rank // 8) * 8}"
        )
    found = {which: matrix.shape for which, matrix in matrices.items()}
    if found != {"A": (rank, num_in), "B": (num_out, rank)}:
        raise EngineError(
            f"the adapter has {shown(found)} at {shown(module)}, expected A {(rank, num_in)} and B {(num_out, rank)}: "
            "take an adapter of this model"
        )
    return matrices["A"], matrices["B"]


def _place(module: str) -> str:
    """The path of a module without the prefixes of classes that wrap the model."""
    return _AROUND.sub("", module)
