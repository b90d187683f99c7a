"""Describes an engine as an OCI artifact: an image manifest whose layers are the engine's files.

https://github.com/opencontainers/image-spec/blob/main/manifest.md describes the manifest. The engine's config.json is
both the configuration and a layer, so that any tool that pulls artifacts gets a whole engine.
"""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from trtllm_lite.common.vocabulary import MAX_BYTES
from trtllm_lite.engine.format import COMPANION_FILES, CONFIG_FILE, ENGINE_FILE, ENGINE_FILES, max_file_bytes
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.provenance import PROVENANCE_FILE
from trtllm_lite.engine.records import OneOf, Range, from_json, json_text, parse_json
from trtllm_lite.engine.sbom import SBOM_FILE
from trtllm_lite.engine.signature import SIGNATURE_FILE
from trtllm_lite.errors import EngineError, shown

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.trtllm-lite.engine.v1"
CONFIG_TYPE = "application/vnd.trtllm-lite.engine.config.v1+json"
# Maps the files of an engine to their media types.
LAYER_TYPES = {
    CONFIG_FILE: CONFIG_TYPE,
    **dict.fromkeys(ENGINE_FILES, "application/vnd.trtllm-lite.engine.rank.v1"),
    **dict.fromkeys(COMPANION_FILES, "application/vnd.trtllm-lite.engine.tokenizer.v1+json"),
    PROVENANCE_FILE: "application/vnd.in-toto+json",
    SBOM_FILE: "application/vnd.cyclonedx+json",
    SIGNATURE_FILE: "application/vnd.dsse.envelope.v1+json",
}
TITLE = "org.opencontainers.image.title"
DESCRIPTION = "org.opencontainers.image.description"
MAX_MANIFEST_BYTES = 4 << 20  # by the specification registries should take manifests of 4 MiB


@dataclass(frozen=True)
class Sha256:
    """The rule of fields that hold a digest: ``sha256:`` and 64 lower-case hexadecimal digits."""

    def expected(self, value: str) -> str | None:
        """A description of the values expected instead of ``value``; None if ``value`` is one of them."""
        return None if re.fullmatch(r"sha256:[0-9a-f]{64}", value) else "sha256: and 64 hexadecimal digits"


@dataclass(frozen=True)
class Descriptor:
    """A blob of the registry: its media type, its digest, its size."""

    media_type: str = field(metadata={"key": "mediaType"})
    digest: Annotated[str, Sha256()]
    size: Annotated[int, Range(1, MAX_BYTES)]
    annotations: dict[str, str]

    @property
    def title(self) -> str:
        """The name of the blob's file."""
        return self.annotations.get(TITLE, "")


@dataclass(frozen=True)
class Artifact:
    """The manifest of an artifact."""

    schema_version: Literal[2] = field(metadata={"key": "schemaVersion"})
    media_type: Annotated[str, OneOf("", (MANIFEST_TYPE,))] = field(metadata={"key": "mediaType"})
    artifact_type: Annotated[str, OneOf("", (ARTIFACT_TYPE,))] = field(metadata={"key": "artifactType"})
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: dict[str, str]

    def to_json(self) -> str:
        """The bytes of the manifest, which are ASCII; their digest is the artifact's."""
        return json_text(self)


def artifact_of(layers: tuple[Descriptor, ...], engine: Manifest) -> Artifact:
    """The artifact of an engine's files, which include config.json."""
    config = next(layer for layer in layers if layer.title == CONFIG_FILE)
    target = ", ".join(engine.target.archs) or engine.target.kind
    about = f"{engine.model.architecture} ({engine.qformat}) for {target}, {engine.producer}"
    return Artifact(2, MANIFEST_TYPE, ARTIFACT_TYPE, config, layers, {DESCRIPTION: about})


def read_artifact(data: bytes, name: str) -> Artifact:
    """Check the manifest that a registry has under ``name``: every layer is one file of an engine, each once.

    Raises EngineError.
    """
    raw = parse_json(data, f"the manifest of {name}")
    found = raw.get("artifactType") if isinstance(raw, dict) else None
    if found != ARTIFACT_TYPE:
        raise EngineError(
            f"{name} is no engine: its artifactType is {shown(found)}, expected {ARTIFACT_TYPE}: pass the reference of "
            "one that `trtllm-lite push` wrote"
        )
    artifact = from_json(Artifact, raw, f"the manifest of {name}")
    for layer in artifact.layers:
        if LAYER_TYPES.get(layer.title) != layer.media_type:
            raise EngineError(
                f"{name} holds {shown(layer.title)} of type {shown(layer.media_type)}, which is no file of an engine: "
                "do not trust it, or install the trtllm_lite that wrote it"
            )
        limit = max_file_bytes(layer.title)
        if layer.size > limit:
            raise EngineError(
                f"{layer.title} of {name} has {layer.size:,} bytes, expected at most {limit:,}: do not trust it"
            )
    titles = [layer.title for layer in artifact.layers]
    once = len(set(titles)) == len(titles)
    if not once or not {CONFIG_FILE, ENGINE_FILE} <= set(titles) or artifact.config not in artifact.layers:
        raise EngineError(
            f"{name} should hold each file of an engine once, {ENGINE_FILE} and its configuration {CONFIG_FILE} among "
            f"them, and holds {', '.join(titles) or 'none'}: push the engine again"
        )
    return artifact
