"""Reads an adapter in PEFT's format, and finds the projections of an engine that it changes.

Only adapter_config.json and adapter_model.safetensors of a local directory are read, never a pickle.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from trtllm_lite.errors import EngineError, LimitError, shown
from trtllm_lite.runtime.lora.contents import Contents, digest_of, read_contents
from trtllm_lite.runtime.lora.settings import MAX_CONFIG_BYTES, AdapterSettings, parse_settings
from trtllm_lite.runtime.lora.tensors import read_tensors

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
MAX_WEIGHTS_BYTES = 1 << 34
_KEY = re.compile(r"base_model\.model\.(?P<module>[\w.]{1,256})\.lora_(?P<which>[AB])\.weight")
_LAYER = re.compile(r"(?:.*\.)?layers\.(?P<layer>\d{1,5})\.(?:\w+\.)?(?P<last>\w+)")

Matrix = NDArray[Any]  # float32, float16, or bfloat16 as uint16: as the file has it


class Pair(NamedTuple):
    """A [rank, in] and B [out, rank] of a projection; what it adds is B @ A times ``scale``."""

    name: str
    a: Matrix
    b: Matrix
    scale: float


@dataclass(frozen=True)
class Projections:
    """The projections of an engine that adapters may change: names and [in, out] extents by number."""

    names: Sequence[str]
    shapes: Sequence[tuple[int, int]]
    max_rank: int

    def number_of(self, module: str) -> int:
        """The number of the module with this path in the model. Raises EngineError if the engine has none."""
        place = _place(module)
        if place is None or place not in self._numbers:
            known = sorted({name.rpartition(".")[2] for name in self.names})
            if module.rpartition(".")[2] in known:
                raise EngineError(
                    f"the adapter changes {shown(module)}, and this engine's model has no such layer: take an adapter "
                    "of this model"
                )
            raise EngineError(
                f"the adapter changes {shown(module)}, and this engine lets adapters change {', '.join(known)} of its "
                "layers: take an adapter of this model, trained on these modules"
            )
        return self._numbers[place]

    @cached_property
    def _numbers(self) -> dict[tuple[int, str] | None, int]:
        return {_place(name): number for number, name in enumerate(self.names)}


@dataclass(frozen=True)
class AdapterWeights:
    """``pairs`` by number of projection; ``key`` is a digest of all."""

    pairs: Mapping[int, Pair]
    key: bytes


def read_adapter(directory: Path, projections: Projections) -> AdapterWeights:
    """Read the adapter in ``directory``.

    Raises EngineError for files that are absent, damaged, or of another model, LimitError for a rank above the
    engine's. Elements that are not finite are found when the pairs are converted.
    """
    config = _read(directory, CONFIG_FILE, MAX_CONFIG_BYTES)
    weights = _read(directory, WEIGHTS_FILE, MAX_WEIGHTS_BYTES)
    settings, tensors = parse_settings(bytes(config.data)), read_tensors(weights.data)
    return AdapterWeights(_pairs(tensors, settings, projections), digest_of(config.digest + weights.digest))


def _read(directory: Path, name: str, limit: int) -> Contents:
    path = directory / name
    try:
        if not directory.is_dir():
            raise EngineError(
                f"there is no directory {shown(str(directory))}: pass one that PEFT's save_pretrained wrote"
            )
        if not path.is_file():  # opening a pipe would wait for a writer
            raise EngineError(
                f"{shown(str(directory))} has no file {name}: pass a local directory that PEFT's save_pretrained wrote"
            )
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise EngineError(f"{name} has {size} bytes, above {limit}: this is no adapter")
            return read_contents(file.fileno(), size)
    except OSError as error:
        raise EngineError(f"cannot read {name} of the adapter: {error.strerror}") from error


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
    pairs = {}
    for module, matrices in modules.items():
        number = projections.number_of(module)
        if number in pairs:
            raise EngineError(f"the adapter has {shown(module)} under two names: save it again")
        pairs[number] = _pair(module, matrices, settings, projections, number)
    return pairs


def _pair(
    module: str, matrices: Mapping[str, Matrix], settings: AdapterSettings, projections: Projections, number: int
) -> Pair:
    rank, (num_in, num_out) = settings.rank_of(module), projections.shapes[number]
    if rank > projections.max_rank:
        raise LimitError(
            f"the adapter has rank {rank} at {shown(module)}, above max_lora_rank {projections.max_rank} of this "
            f"engine: build it with --max_lora_rank {-(-rank // 8) * 8}"
        )
    found = {which: matrix.shape for which, matrix in matrices.items()}
    if found != {"A": (rank, num_in), "B": (num_out, rank)}:
        raise EngineError(
            f"the adapter has {shown(found)} at {shown(module)}, expected A {(rank, num_in)} and B {(num_out, rank)}: "
            "take an adapter of this model"
        )
    return Pair(f"base_model.model.{module}", matrices["A"], matrices["B"], settings.scale_of(module))


def _place(path: str) -> tuple[int, str] | None:
    """Layer and last name of a module's path."""
    match = _LAYER.fullmatch(path)
    return None if match is None else (int(match["layer"]), match["last"])
