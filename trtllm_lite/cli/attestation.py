"""Describes a build for `build --provenance`: its options, the files that it read, and the versions of its software."""

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from trtllm_lite.common.gguf_parts import parts_of

if TYPE_CHECKING:
    from trtllm_lite.engine.provenance import Material

# Options that name places, and change nothing in the engine.
_PLACES = ("checkpoint_dir", "output_dir", "config", "provenance", "calib_dir", "num_threads")
_FILES = ("input_timing_cache", "output_timing_cache", "calib_dataset", "model_config")


def attest_build(directory: Path, source: Path | None) -> None:
    """Write the SBOM and the provenance of the engine in ``directory``, built from ``source`` by the current command.

    ``source`` is a model or a checkpoint, and None for a build from a model config, which is an option.
    """
    from trtllm_lite.cli.packages import packages_of
    from trtllm_lite.convert.sources.licence import find_licence
    from trtllm_lite.engine.format import ENGINE_FILE
    from trtllm_lite.engine.provenance import write_provenance
    from trtllm_lite.engine.reader import read_engine
    from trtllm_lite.engine.sbom import Bill, write_sbom

    given = _given()
    manifest = read_engine(directory / ENGINE_FILE).manifest
    model = _materials(() if source is None else _files(source))
    bill = Bill(
        code=_code(),
        origin=None if source is None else _origin(source),
        model=model,
        licence=None if source is None else find_licence(source),
        data=_materials(_data(given)),
        packages=list(packages_of([item.name for item in model], manifest.target.kind)),
    )
    write_sbom(directory, manifest, bill)
    versions = {"python": platform.python_version()} | {item.name: item.version for item in bill.packages}
    write_provenance(directory, _parameters(given, source), bill.materials, versions)


def _given() -> dict[str, Any]:
    """The options that were given and can change the engine."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in context.params.items()
        if name not in _PLACES and context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
    }


def _parameters(given: dict[str, Any], source: Path | None) -> dict[str, dict[str, Any]]:
    """The options and checks by section. Files, which are materials, appear by name only, without places."""
    sections = {"build": {name: Path(value).name if name in _FILES else value for name, value in given.items()}}
    config = click.get_current_context().params["config"]
    if config is not None and config.checks:
        sections["checks"] = dict(config.checks)
    if config is None or config.model is None or source is None:
        return sections
    model = dict(config.model)
    if Path(model["model_dir"]).exists():  # not a hub id
        model["model_dir"] = source.absolute().name
    return sections | {"model": model}


def _origin(source: Path) -> "Material | None":
    """The hub's repository, with the commit, from which a model was downloaded."""
    from packageurl import PackageURL

    from trtllm_lite.convert.sources.hugging_face import hub_origin
    from trtllm_lite.engine.provenance import Material

    origin = hub_origin(source)
    if origin is None:
        return None
    hub_id, commit = origin
    owner, _, name = hub_id.rpartition("/")
    uri = PackageURL("huggingface", owner, name, commit).to_string()
    return Material(hub_id, {"gitCommit": commit}, uri)


def _data(given: dict[str, Any]) -> list[Path]:
    """The data files that options name, and the build file."""
    config = click.get_current_context().params["config"]
    return [*(Path(given[name]) for name in _FILES if given.get(name)), *([] if config is None else [config.path])]


def _files(source: Path) -> Sequence[Path]:
    """The files of a model or checkpoint; a downloaded model has links to them."""
    return sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else parts_of(source)


def _materials(read: Iterable[Path]) -> "list[Material]":
    from trtllm_lite.common.foreign_files import sha256_of
    from trtllm_lite.engine.provenance import Material

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
