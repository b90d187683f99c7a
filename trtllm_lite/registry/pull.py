"""Fetches an engine from a registry."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from trtllm_lite.common.files import atomic_directory, require_replaceable, require_space
from trtllm_lite.common.progress import Report
from trtllm_lite.engine.format import CONFIG_FILE
from trtllm_lite.engine.verification import CheckedEngine, check_engine
from trtllm_lite.errors import EngineError
from trtllm_lite.registry.artifact import LAYER_TYPES, Artifact, read_artifact
from trtllm_lite.registry.client import Registry
from trtllm_lite.registry.reference import Reference


@dataclass(frozen=True)
class Pulled:
    """The result of a pull: the digest of the artifact, the bytes of its files, and the checked engine."""

    digest: str
    num_bytes: int
    engine: CheckedEngine


def pull_engine(
    reference: Reference,
    output_dir: Path,
    report: Report,
    plain_http: bool = False,
    *,
    require_provenance: bool = False,
    key_file: Path | None = None,
) -> Pulled:
    """Pull ``reference`` into ``output_dir``, which appears whole and checked, or not at all.

    Every file is checked against its digest in the artifact, and the artifact against the reference's digest, if it has
    one; then ``check_engine`` checks the engine with ``require_provenance`` and ``key_file``.

    Raises EngineError (not an engine, or a wrong digest), RegistryError, OutputError.
    """
    require_replaceable(output_dir, CONFIG_FILE)
    registry = Registry(reference, plain_http)
    data = registry.manifest()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if reference.digest not in (None, digest):
        raise EngineError(f"{reference.host} sent an artifact of the digest {digest} as {reference}: do not trust it")
    artifact = read_artifact(data, str(reference))
    with atomic_directory(output_dir, CONFIG_FILE, optional=LAYER_TYPES) as directory:
        num_bytes = _pull_files(registry, artifact, directory, report)
        engine = check_engine(directory, require_provenance=require_provenance, key_file=key_file)
        return Pulled(digest, num_bytes, engine)


def _pull_files(registry: Registry, artifact: Artifact, directory: Path, report: Report) -> int:
    """Write the layers into ``directory``; returns their bytes."""
    total, done = sum(layer.size for layer in artifact.layers), 0
    require_space(directory, total)
    for layer in artifact.layers:  # each has the name of one of LAYER_TYPES
        with open(directory / layer.title, "wb") as file:
            for piece in registry.pull(layer):
                file.write(piece)
                done += len(piece)
                report("pull", done, total)
    return done
