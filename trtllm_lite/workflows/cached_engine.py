"""Opens the engine of a model, and makes it if the cache has none."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trtllm_lite.common.files import cache_directory, reading_model
from trtllm_lite.common.progress import Report, progress_bars
from trtllm_lite.common.units import format_bytes
from trtllm_lite.common.vocabulary import AUTO_TARGET, CPU
from trtllm_lite.engine_cache.recipe import Recipe, engine_key
from trtllm_lite.engine_cache.store import ENGINES, locked, touch, trim
from trtllm_lite.errors import EngineError
from trtllm_lite.network.config import NETWORK_FILE
from trtllm_lite.workflows.cached_checkpoint import checkpoint_path, use_checkpoint

if TYPE_CHECKING:
    from trtllm_lite.builder import Checkpoint
    from trtllm_lite.builder.local_target import LocalTarget

_Opened = TypeVar("_Opened")


def open_cached(
    model: str, recipe: Recipe, open_engine: Callable[[Path], _Opened], target: str
) -> tuple[Path, _Opened]:
    """Call ``open_engine`` for the engine of ``model`` (a model or checkpoint), which is made if there is none.

    Returns the engine's directory, too. ``target`` describes in words what an engine is made for. An engine with
    damaged files is made again. If several processes need the same engine, the first makes it and the others wait.
    Making an engine shows progress, and reports the engine on stderr. Engines in the cache are only read.

    Raises ConvertError, BuildError, EngineError, the errors of ``open_engine``, and OutputError if the cache cannot be
    written.
    """
    with _making(model):
        from trtllm_lite.convert.mapping import find_model
    with reading_model(model):
        source = find_model(model)
        entry = cache_directory(ENGINES) / engine_key(source, recipe)
    checkpoint = checkpoint_path(source, recipe.conversion)
    opened = _open_sound(entry, open_engine)
    if opened is None:
        with locked(entry, model):
            opened = _open_sound(entry, open_engine)
            if opened is None:
                _make(source, model, recipe, entry, target)
                opened = open_engine(entry)
        trim(keep=(entry, checkpoint))
    touch(entry)
    return entry, opened


def chosen_target(model: str, target: str | None) -> "LocalTarget":
    """The target of an engine of ``model``; None and AUTO_TARGET stand for this machine.

    Raises the errors of ``local_target``, and EngineError if no engine can be made.
    """
    with _making(model):
        from trtllm_lite.builder.local_target import LocalTarget, local_target
    return local_target() if target in (None, AUTO_TARGET) else LocalTarget((str(target),))


@contextmanager
def _making(model: str) -> Iterator[None]:
    """Raise EngineError if a package is missing that is needed to make engines."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise EngineError(
            f"{model} is no engine, and making one of it needs {error.name}: pip install 'trtllm_lite[build]', or pass "
            "the directory of an engine"
        ) from error


def _open_sound(entry: Path, open_engine: Callable[[Path], _Opened]) -> _Opened | None:
    """Call ``open_engine`` for ``entry``; None if the entry does not exist, or if its files are damaged."""
    if not entry.is_dir():
        return None
    try:
        return open_engine(entry)
    except EngineError:
        if _is_sound(entry):
            raise
        return None


def _is_sound(entry: Path) -> bool:
    """Whether the files of an engine are intact. Raises EngineError if the runtime cannot read one."""
    from trtllm_lite.engine.format import COMPANION_FILES, ENGINE_FILE
    from trtllm_lite.engine.manifest import Manifest
    from trtllm_lite.runtime.core import core

    native = core()
    try:
        manifest = Manifest.from_json(native.Engine(str(entry / ENGINE_FILE)).manifest)
        for name in manifest.engine_files:
            native.Engine(str(entry / name))
        return all(
            name in COMPANION_FILES and f"{native.crc32c((entry / name).read_bytes()):08x}" == checksum
            for name, checksum in manifest.files.items()
        )
    except (EngineError, OSError):
        return False


def _make(source: Path, model: str, recipe: Recipe, entry: Path, target: str) -> None:
    from trtllm_lite.builder.backends import backend_of
    from trtllm_lite.builder.job import Tuning

    if entry.is_dir():
        print(f"trtllm_lite: {entry} is damaged and made again", file=sys.stderr)
        shutil.rmtree(entry)
    print(f"trtllm_lite: {target}", file=sys.stderr)
    begin = time.perf_counter()
    backend, targets = backend_of([recipe.target])
    backend.check(targets, False, Tuning())  # an unknown target is an error before the model is converted
    with progress_bars() as report:
        if (source / NETWORK_FILE).is_file():
            _build(source, recipe, entry, report)
        else:
            use_checkpoint(source, model, recipe.conversion, report, lambda made: _build(made, recipe, entry, report))
    size = format_bytes(sum(file.stat().st_size for file in entry.iterdir()))
    print(f"trtllm_lite: made {entry} ({size}) of {model} in {time.perf_counter() - begin:.1f} s", file=sys.stderr)


def _build(checkpoint: "Path | Checkpoint", recipe: Recipe, entry: Path, report: Report) -> None:
    """Quantize the checkpoint by the recipe, calibrated on the text of the package, and build the engine."""
    from trtllm_lite.builder import build_engine, open_checkpoint
    from trtllm_lite.quantize.calibration.dataset import CalibrationText
    from trtllm_lite.quantize.network import Recipe as Quantized
    from trtllm_lite.workflows.calibration import Calibration
    from trtllm_lite.workflows.quantize import quantized

    source = open_checkpoint(checkpoint) if isinstance(checkpoint, Path) else checkpoint
    length = min(CalibrationText.max_seq_length, source.config.max_position_embeddings)
    text = CalibrationText(max_seq_length=length)
    calibration = Calibration(text, device="cpu" if recipe.target == CPU else "cuda")
    with quantized(source, Quantized(**recipe.quantization), calibration, report) as result:
        build_engine(result.checkpoint, entry, progress=report, **recipe.build_arguments())
