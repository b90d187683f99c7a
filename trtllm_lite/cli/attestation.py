"""What `build --provenance` says of a build: its options, the files that it read, and the versions that made it."""

from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from trtllm_lite.engine.provenance import Material

# Options that say where something is or is kept, and change nothing of the engine.
_PLACES = ("checkpoint_dir", "output_dir", "config", "provenance", "calib_dir", "num_threads")
_FILES = ("input_timing_cache", "calib_dataset", "model_config")
_PACKAGES = ("numpy", "onnx", "onnx-ir", "ml_dtypes", "gguf", "tokenizers", "sentencepiece", "nvidia-cuda-nvrtc")


def attest_build(directory: Path, source: Path | None) -> None:
    """Write the provenance of the engine in ``directory``, built by the command that runs of ``source``.

    ``source`` is a model, or a checkpoint; None with a model config, which is an option.
    """
    from trtllm_lite.engine.provenance import write_provenance

    context = click.get_current_context()
    given = {
        name: value
        for name, value in context.params.items()
        if name not in _PLACES and context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
    }
    config = context.params["config"]
    parameters = {"build": given} | ({} if config is None or config.model is None else {"model": dict(config.model)})
    read = [*([] if source is None else _files(source)), *(Path(given[name]) for name in _FILES if given.get(name))]
    if config is not None:
        read.append(config.path)
    write_provenance(directory, parameters, _materials(read), _versions())


def _files(source: Path) -> Sequence[Path]:
    """The files of a model or checkpoint; a model that was fetched has links to them."""
    return sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else [source]


def _materials(read: Iterable[Path]) -> "list[Material]":
    from trtllm_lite.bench.machine import commit
    from trtllm_lite.engine.provenance import Material, sha256_of
    from trtllm_lite.engine_cache.recipe import code_digest

    code = {"sha256": code_digest()}
    revision = commit()
    if revision is not None and not revision.endswith("-dirty"):
        code["gitCommit"] = revision
    return [Material("trtllm_lite", code), *(Material(path.name, {"sha256": sha256_of(path)}) for path in read)]


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # nothing of it took part
            continue
    return found
