"""Caches the checkpoints of models, for engines with other limits."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from trtllm_lite.common.files import cache_directory, reading_model
from trtllm_lite.common.progress import Report
from trtllm_lite.engine_cache.recipe import Conversion, checkpoint_key
from trtllm_lite.engine_cache.store import CHECKPOINTS, locked, touch
from trtllm_lite.errors import EngineError

if TYPE_CHECKING:
    from trtllm_lite.builder import Checkpoint

_Result = TypeVar("_Result")
_UNCHECKED: Mapping[str, str] = MappingProxyType({})


def checkpoint_path(source: Path, conversion: Conversion, sha256: Mapping[str, str] = _UNCHECKED) -> Path:
    """The path of the checkpoint of the model ``source``, existing or not. Raises ConvertError, OutputError."""
    with reading_model(str(source)):
        key = checkpoint_key(source, conversion, sha256)
    return cache_directory(CHECKPOINTS) / key


def use_checkpoint(
    source: Path,
    model: str,
    conversion: Conversion,
    report: Report,
    use: "Callable[[Checkpoint], _Result]",
    sha256: Mapping[str, str] = _UNCHECKED,
) -> _Result:
    """Call ``use`` with the checkpoint of ``source``, called ``model``; a missing or damaged checkpoint is made first.

    ``sha256`` has the digests, by name, of files that were checked: another digest leads to another checkpoint. Other
    large files are identified by their ends, size and date only.

    The checkpoint is locked meanwhile: nobody removes it, and other processes that need it wait. Raises ConvertError,
    OutputError, and the errors of ``use``.
    """
    path = checkpoint_path(source, conversion, sha256)
    with locked(path, model):
        result = use(_opened(path) or _made(source, path, conversion, report))
        touch(path)
        return result


def _opened(path: Path) -> "Checkpoint | None":
    """The checkpoint at ``path``; None if there is none. A damaged one is removed."""
    from trtllm_lite.builder import open_checkpoint

    if not path.is_dir():
        return None
    try:
        return open_checkpoint(path)
    except EngineError:
        shutil.rmtree(path)
        return None


def _made(source: Path, path: Path, conversion: Conversion, report: Report) -> "Checkpoint":
    """Make the checkpoint of ``source`` at ``path``."""
    from trtllm_lite.builder import open_checkpoint
    from trtllm_lite.convert import convert_checkpoint

    def progress(_: str, done: int, total: int) -> None:
        report("convert", done, total)

    convert_checkpoint(str(source), path, progress=progress, **asdict(conversion))
    return open_checkpoint(path)
