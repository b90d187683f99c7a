"""Engines that ``LLM`` makes of models, kept by the content of what they are made of."""

import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtllm_lite.errors import EngineError, OutputError

if TYPE_CHECKING:
    from trtllm_lite.network.config import ModelConfig

NETWORK_FILE = "network.onnx"
_WHOLE = 1 << 24  # files up to this size count with all their bytes, larger ones (weights) with their ends and date
_END = 1 << 16
_PACKAGE = Path(__file__).parent
_Opened = TypeVar("_Opened")


@dataclass(frozen=True)
class Recipe:
    """How an engine is made; None leaves a limit to the model and the builder's defaults."""

    target: str
    dtype: str
    limits: Mapping[str, int | None]
    tokens_per_block: int | None
    gather_context_logits: bool


def engine_cache_dir() -> Path:
    """Where engines are kept: ``$XDG_CACHE_HOME/trtllm_lite/engines``."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "trtllm_lite" / "engines"


def open_cached(model: str, recipe: Recipe, open_engine: Callable[[Path], _Opened]) -> tuple[Path, _Opened]:
    """``open_engine`` of the engine made of ``model`` (a model or checkpoint), which is made if there is none.

    Returns its directory too. An entry that is no sound engine is made again. Processes that want the same one wait for
    the first. Says on stderr what it made.

    Raises ConvertError, BuildError, EngineError; OutputError if the cache cannot be written; what ``open_engine`` does.
    """
    try:
        from trtllm_lite.convert.mapping import find_model
    except ModuleNotFoundError as error:
        raise EngineError(
            f"{model} is no engine, and making one of it needs {error.name}: pip install 'trtllm_lite[build]', or pass "
            "the directory of an engine"
        ) from error
    source = find_model(model)
    entry = engine_cache_dir() / _key(source, recipe)
    with _locked(entry):
        if entry.is_dir():
            try:
                return entry, open_engine(entry)
            except EngineError as error:
                print(f"trtllm_lite: {entry} is damaged and made again: {error}", file=sys.stderr)
                shutil.rmtree(entry)
        begin = time.perf_counter()
        _make(source, recipe, entry)
        print(f"trtllm_lite: made {entry} of {model} in {time.perf_counter() - begin:.1f} s", file=sys.stderr)
        return entry, open_engine(entry)


def _make(source: Path, recipe: Recipe, entry: Path) -> None:
    from trtllm_lite.builder import build_engine
    from trtllm_lite.builder.backends import Tuning, backend_of
    from trtllm_lite.convert import convert_checkpoint
    from trtllm_lite.network.config import ModelConfig

    backend, targets = backend_of([recipe.target])
    backend.check(targets, False, Tuning())  # a name that there is not is an error before the model is converted
    if (source / NETWORK_FILE).is_file():
        build_engine(source, entry, **_limits(recipe, ModelConfig.from_dir(source)))
        return
    checkpoint = entry.with_suffix(".checkpoint")
    shutil.rmtree(checkpoint, ignore_errors=True)  # of a process that was killed
    try:
        config = convert_checkpoint(str(source), checkpoint, recipe.dtype)
        build_engine(checkpoint, entry, **_limits(recipe, config))
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def _limits(recipe: Recipe, config: "ModelConfig") -> dict[str, Any]:
    """Arguments of ``build_engine``: defaults shrink to what the model's positions allow."""
    from trtllm_lite.builder import BuildLimits

    given = {name: value for name, value in recipe.limits.items() if value is not None}
    if recipe.tokens_per_block is not None:
        given["tokens_per_block"] = recipe.tokens_per_block
    longest = given.setdefault("max_seq_len", min(BuildLimits.max_seq_len, config.max_position_embeddings))
    given.setdefault("max_input_len", min(BuildLimits.max_input_len, longest))
    return {**given, "gather_context_logits": recipe.gather_context_logits, "target": recipe.target}


def _key(source: Path, recipe: Recipe) -> str:
    """A digest of everything an engine depends on: the model's files, the recipe, and the code that follows it."""
    digest = hashlib.sha256(repr((recipe, _code_digest())).encode())
    files = sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else [source]
    for path in files:
        digest.update(f"\n{path.name} {path.stat().st_size} ".encode())
        digest.update(_content(path))
    return digest.hexdigest()[:32]


def _content(path: Path) -> bytes:
    status = path.stat()
    with open(path, "rb") as file:
        if status.st_size <= _WHOLE:
            return hashlib.sha256(file.read()).digest()
        start = file.read(_END)
        file.seek(-_END, os.SEEK_END)
        return hashlib.sha256(start + file.read()).digest() + str(status.st_mtime_ns).encode()


@cache
def _code_digest() -> str:
    """Of every source file of this package and of its plugins: what has the same version may still have been edited."""
    from trtllm_lite import plugins

    digest = hashlib.sha256()
    for root in (_PACKAGE, *map(Path, plugins.__path__)):
        for path in sorted(file for kind in ("*.py", "*.toml", "*.cuh") for file in root.rglob(kind)):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@contextmanager
def _locked(entry: Path) -> Iterator[None]:
    """Hold the lock file of ``entry``, which lasts no longer than this process."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock = open(entry.with_suffix(".lock"), "w")  # noqa: SIM115 - closed below
    except OSError as error:
        raise OutputError(
            f"cannot write the engine cache {entry.parent}: {error.strerror}: free space there or set XDG_CACHE_HOME"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
