"""The checkpoints of models, which stay in the cache for engines with other limits."""

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from trtllm_lite.engine_cache.recipe import Conversion, checkpoint_key
from trtllm_lite.engine_cache.store import CHECKPOINTS, locked, touch
from trtllm_lite.errors import EngineError
from trtllm_lite.files import cache_directory
from trtllm_lite.progress import Report

_Result = TypeVar("_Result")


def checkpoint_path(source: Path, conversion: Conversion) -> Path:
    """Where the checkpoint of the model ``source`` is, once it is made. Raises OSError."""
    return cache_directory(CHECKPOINTS) / checkpoint_key(source, conversion)


def use_checkpoint(
    source: Path, model: str, conversion: Conversion, report: Report, use: Callable[[Path], _Result]
) -> _Result:
    """``use`` of the checkpoint of ``source``, called ``model``, which is made if there is none or a damaged one.

    Nobody removes it meanwhile, and others that want it wait. Raises ConvertError, OutputError, and what ``use`` raises
    (EngineError if the checkpoint that it is given is damaged).
    """
    path = checkpoint_path(source, conversion)
    with locked(path, model):
        if path.is_dir():
            try:
                result = use(path)
                touch(path)
                return result
            except EngineError:  # the checkpoint is damaged
                shutil.rmtree(path)
        _convert(source, path, conversion, report)
        return use(path)


def _convert(source: Path, path: Path, conversion: Conversion, report: Report) -> None:
    from trtllm_lite.convert import convert_checkpoint

    def progress(_: str, done: int, total: int) -> None:
        report("convert", done, total)

    convert_checkpoint(str(source), path, progress=progress, **asdict(conversion))
