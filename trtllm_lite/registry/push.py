"""Sends an engine to a registry."""

import hashlib
from pathlib import Path

from trtllm_lite.common.printable import one_line
from trtllm_lite.common.progress import Report
from trtllm_lite.engine.verification import check_engine
from trtllm_lite.errors import ArgumentError, EngineError
from trtllm_lite.registry.artifact import LAYER_TYPES, TITLE, Descriptor, artifact_of
from trtllm_lite.registry.client import Registry
from trtllm_lite.registry.reference import Reference


def push_engine(directory: Path, reference: Reference, report: Report, plain_http: bool = False) -> str:
    """Push the engine in ``directory`` as ``reference``; returns the digest by which the engine can be pulled.

    The engine is checked first, against its provenance if there is one. Blobs that the registry already has are not
    sent again. ``plain_http`` is for registries that do not speak https; registries on this machine need no such flag.

    Raises EngineError (not a sound engine, or other files beside it), ArgumentError, RegistryError.
    """
    if reference.digest is not None:
        raise ArgumentError(f"{reference} names an existing engine by its digest: push to a tag, as HOST/NAME:TAG")
    directory = Path(directory)
    manifest = check_engine(directory).manifest
    paths = sorted(directory.iterdir())
    unknown = [path.name for path in paths if path.name not in LAYER_TYPES]
    if unknown:
        raise EngineError(
            f"{directory} holds {one_line(', '.join(unknown))}, which is no part of an engine: move it away"
        )
    registry = Registry(reference, plain_http)
    artifact = artifact_of(_push_files(registry, paths, report), manifest)
    text = artifact.to_json()
    registry.put_manifest(text)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _push_files(registry: Registry, paths: list[Path], report: Report) -> tuple[Descriptor, ...]:
    sizes = [path.stat().st_size for path in paths]
    total, done = sum(sizes), 0
    layers = []
    for path, size in zip(paths, sizes, strict=True):
        sent = 0

        def report_piece(num_bytes: int, before: int = done) -> None:
            nonlocal sent
            sent += num_bytes
            report("push", before + sent, total)

        digest = registry.push(str(path), report_piece)
        layers.append(Descriptor(LAYER_TYPES[path.name], digest, size, {TITLE: path.name}))
        done += size
        report("push", done, total)
    return tuple(layers)
