"""What `build --provenance` says of a build: its options, the files that it read, and the versions that made it."""

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from importlib.metadata import PackageMetadata

    from trtllm_lite.engine.provenance import Material
    from trtllm_lite.engine.sbom import Package

# Options that say where something is or is kept, and change nothing of the engine.
_PLACES = ("checkpoint_dir", "output_dir", "config", "provenance", "calib_dir", "num_threads")
_FILES = ("input_timing_cache", "calib_dataset", "model_config")
_PACKAGES = ("numpy", "onnx", "onnx-ir", "ml_dtypes", "gguf", "tokenizers", "sentencepiece")
_COMPILERS = {"nvidia-cuda-nvrtc": "cuda", "tensorrt_rtx": "tensorrt"}  # and the kind of target that each compiles for
_MAX_LICENCE = 100  # characters; some packages have the whole text there


def attest_build(directory: Path, source: Path | None) -> None:
    """Write the SBOM and the provenance of the engine in ``directory``, built by the command that runs of ``source``.

    ``source`` is a model, or a checkpoint; None with a model config, which is an option.
    """
    from trtllm_lite.convert.licence import find_licence
    from trtllm_lite.engine.format import ENGINE_FILE
    from trtllm_lite.engine.provenance import write_provenance
    from trtllm_lite.engine.reader import read_engine
    from trtllm_lite.engine.sbom import Bill, write_sbom

    parameters = _parameters()
    manifest = read_engine(directory / ENGINE_FILE).manifest
    model = _materials(() if source is None else _files(source))
    bill = Bill(
        code=_code(),
        model=model,
        licence=None if source is None else find_licence(source),
        data=_materials(_data(parameters["build"])),
        packages=list(_packages([item.name for item in model], manifest.target.kind)),
    )
    write_sbom(directory, manifest, bill)
    versions = {package.name: package.version for package in bill.packages}
    write_provenance(directory, parameters, bill.materials, versions)


def _parameters() -> dict[str, dict[str, Any]]:
    """The options that were given, by section."""
    context = click.get_current_context()
    given = {
        name: value
        for name, value in context.params.items()
        if name not in _PLACES and context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
    }
    config = context.params["config"]
    return {"build": given} | ({} if config is None or config.model is None else {"model": dict(config.model)})


def _data(given: dict[str, Any]) -> list[Path]:
    """The files that the options name, and the build file."""
    config = click.get_current_context().params["config"]
    return [*(Path(given[name]) for name in _FILES if given.get(name)), *([] if config is None else [config.path])]


def _files(source: Path) -> Sequence[Path]:
    """The files of a model or checkpoint; a model that was fetched has links to them."""
    return sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else [source]


def _materials(read: Iterable[Path]) -> "list[Material]":
    from trtllm_lite.engine.provenance import Material, sha256_of

    return [Material(path.name, {"sha256": sha256_of(path)}) for path in read]


def _code() -> "Material":
    from trtllm_lite.bench.machine import commit
    from trtllm_lite.engine.provenance import Material
    from trtllm_lite.engine_cache.recipe import code_digest

    code = {"sha256": code_digest()}
    revision = commit()
    if revision is not None and not revision.endswith("-dirty"):
        code["gitCommit"] = revision
    return Material("trtllm_lite", code)


def _packages(files: Sequence[str], target: str) -> "Iterator[Package]":
    """The packages that took part in building of these files for the kind of ``target``."""
    from trtllm_lite.engine.sbom import Package

    takes_part = {
        "gguf": any(name.endswith(".gguf") for name in files),
        "sentencepiece": "tokenizer.model" in files,
        **{name: target == kind for name, kind in _COMPILERS.items()},
    }
    for name in (*_PACKAGES, *_COMPILERS):
        if takes_part.get(name, True):
            try:
                found = metadata(name)
            except PackageNotFoundError:  # a kernel that nvrtc would compile was in the cache
                continue
            yield Package(name, found["Version"], _licence(found))


def _licence(package: "PackageMetadata") -> str | None:
    """What a package says of its licence: https://packaging.python.org/en/latest/specifications/core-metadata/."""
    said = [text for key in ("License-Expression", "License") for text in package.get_all(key, [])]
    said += [text.split(" :: ")[-1] for text in package.get_all("Classifier", []) if text.startswith("License :: ")]
    return next((text for text in said if 0 < len(text) <= _MAX_LICENCE), None)
