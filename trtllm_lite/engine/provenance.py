"""Records where an engine came from: an in-toto statement with SLSA's provenance (v1) in the engine's directory.

The statement has no time, and only names and digests of files, so that the same build gives the same bytes on every
machine. https://slsa.dev/spec/v1.0/provenance and https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
describe the fields.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_lite.common.foreign_files import read_foreign, sha256_of
from trtllm_lite.common.printable import one_line
from trtllm_lite.engine.format import PRODUCER, max_file_bytes
from trtllm_lite.engine.records import parse_json
from trtllm_lite.engine.signature import SIGNATURE_FILE
from trtllm_lite.errors import EngineError, shown

PROVENANCE_FILE = "provenance.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:trtllm-lite:build:v1"
BUILDER_ID = "urn:trtllm-lite"
_OWN_VERSION = "trtllm_lite"
REMEDY = "copy the engine again, or build it again with --provenance"


@dataclass(frozen=True)
class Material:
    """A file or a repository that went into an engine, or source code that made it.

    ``digest`` has digests by algorithm, in hexadecimal; ``uri`` is its public address, if it has one.
    """

    name: str
    digest: Mapping[str, str]
    uri: str | None = None

    def describe(self) -> dict[str, Any]:
        """The resource descriptor: https://github.com/in-toto/attestation/blob/main/spec/v1/resource_descriptor.md."""
        described = {"name": self.name, "digest": dict(self.digest)}
        return described if self.uri is None else described | {"uri": self.uri}


@dataclass(frozen=True)
class Provenance:
    """The content of an engine's statement: its files, the options of the build, materials, and versions by package."""

    files: Mapping[str, str]
    parameters: Mapping[str, Any]
    materials: tuple[Material, ...]
    versions: Mapping[str, str]

    @property
    def producer(self) -> str:
        """The producer of the engine, for people."""
        return one_line(f"trtllm_lite {self.versions[_OWN_VERSION]}")


def write_provenance(
    directory: Path, parameters: Mapping[str, Any], materials: Iterable[Material], versions: Mapping[str, str]
) -> None:
    """Write the statement about all files of ``directory``. Raises OSError."""
    files = sorted(described_files(directory).values())
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": path.name, "digest": {"sha256": sha256_of(path)}} for path in files],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": dict(parameters),
                "resolvedDependencies": [item.describe() for item in materials],
            },
            "runDetails": {"builder": {"id": BUILDER_ID, "version": {_OWN_VERSION: PRODUCER.split()[1], **versions}}},
        },
    }
    (directory / PROVENANCE_FILE).write_text(json.dumps(statement, indent=2, sort_keys=True) + "\n")


def read_provenance(directory: Path) -> Provenance:
    """The statement in ``directory``. Raises EngineError if the statement is absent or of another kind."""
    path = directory / PROVENANCE_FILE
    statement = parse_json(read_statement(directory), str(path))
    try:
        if (statement["_type"], statement["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise EngineError(f"{path} is no in-toto statement with SLSA's provenance of version 1: {REMEDY}")
        definition, run = (statement["predicate"][key] for key in ("buildDefinition", "runDetails"))
        if definition["buildType"] != BUILD_TYPE:
            raise EngineError(f"{path} has buildType {shown(definition['buildType'])}, expected {BUILD_TYPE}: {REMEDY}")
        versions = run["builder"]["version"]
        return Provenance(
            files={str(item["name"]): str(item["digest"]["sha256"]) for item in statement["subject"]},
            parameters=dict(definition["externalParameters"]),
            materials=tuple(
                Material(str(item["name"]), _texts(item["digest"]), _text(item.get("uri")))
                for item in definition["resolvedDependencies"]
            ),
            versions={_OWN_VERSION: versions[_OWN_VERSION], **_texts(versions)},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"{path} lacks a field, or a field has the wrong type ({error}): {REMEDY}") from error


def described_files(directory: Path) -> dict[str, Path]:
    """The files that the statement of ``directory`` describes, by name."""
    return {path.name: path for path in directory.iterdir() if path.name not in (PROVENANCE_FILE, SIGNATURE_FILE)}


def read_statement(directory: Path) -> bytes:
    """The bytes of the statement in ``directory``. Raises EngineError."""
    path = directory / PROVENANCE_FILE
    try:
        return read_engine_file(path)
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror}: {REMEDY}") from error


def read_engine_file(path: Path) -> bytes:
    """Read a file of an engine. Raises OSError."""
    return read_foreign(path, max_file_bytes(path.name), inside=path.parent)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _texts(entries: Mapping[str, Any]) -> dict[str, str]:
    """The entries of a JSON object as texts. Raises AttributeError if ``entries`` is no object."""
    return {name: str(value) for name, value in entries.items()}
