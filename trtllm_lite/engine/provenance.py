"""Where an engine came from: an in-toto statement with SLSA's provenance (v1) in the engine's directory.

It has no time in it, and of files on the machine only names and digests, so that the same build gives the same bytes
wherever it is made. https://slsa.dev/spec/v1.0/provenance and
https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md describe the fields.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_lite._core import Engine, crc32c
from trtllm_lite.engine.format import CONFIG_FILE, ENGINE_FILE, PRODUCER, TOKENIZER_FILES, max_file_bytes
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.engine.records import parse_json
from trtllm_lite.errors import EngineError, shown
from trtllm_lite.printable import one_line

PROVENANCE_FILE = "provenance.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:trtllm-lite:build:v1"
BUILDER_ID = "urn:trtllm-lite"
_OWN_VERSION = "trtllm_lite"
_REMEDY = "copy the engine again, or build it again with --provenance"


@dataclass(frozen=True)
class Material:
    """A file or a repository that went into an engine, or source code that made it.

    ``digest`` has digests by algorithm, in hexadecimal; ``uri`` says where others find it, if they do.
    """

    name: str
    digest: Mapping[str, str]
    uri: str | None = None

    def describe(self) -> dict[str, Any]:
        """As a resource descriptor: https://github.com/in-toto/attestation/blob/main/spec/v1/resource_descriptor.md."""
        described = {"name": self.name, "digest": dict(self.digest)}
        return described if self.uri is None else described | {"uri": self.uri}


@dataclass(frozen=True)
class Provenance:
    """What an engine's statement says: its files, the options of the build, what went in, and versions by package."""

    files: Mapping[str, str]
    parameters: Mapping[str, Any]
    materials: tuple[Material, ...]
    versions: Mapping[str, str]

    @property
    def producer(self) -> str:
        """What made the engine, for people."""
        return one_line(f"trtllm_lite {self.versions[_OWN_VERSION]}")


def sha256_of(path: Path) -> str:
    """The digest of a file. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_provenance(
    directory: Path, parameters: Mapping[str, Any], materials: Iterable[Material], versions: Mapping[str, str]
) -> None:
    """Write the statement about all files of ``directory``. Raises OSError."""
    files = sorted(path for path in directory.iterdir() if path.name != PROVENANCE_FILE)
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
    """The statement in ``directory``. Raises EngineError if there is none, or if it is of another kind."""
    path = directory / PROVENANCE_FILE
    try:
        data = _read_whole(path)
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror}: {_REMEDY}") from error
    statement = parse_json(data, str(path))
    try:
        if (statement["_type"], statement["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise EngineError(f"{path} is no in-toto statement with SLSA's provenance of version 1: {_REMEDY}")
        definition, run = (statement["predicate"][key] for key in ("buildDefinition", "runDetails"))
        if definition["buildType"] != BUILD_TYPE:
            raise EngineError(f"{path} is about {shown(definition['buildType'])}, expected {BUILD_TYPE}: {_REMEDY}")
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
        raise EngineError(f"{path} lacks a field, or one has another type ({error}): {_REMEDY}") from error


def _read_whole(path: Path) -> bytes:
    """A file of an engine. Raises OSError, or EngineError if it is larger than any such file."""
    limit = max_file_bytes(path.name)
    with open(path, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise EngineError(f"{path} has {path.stat().st_size:,} bytes, expected at most {limit:,}: {_REMEDY}")
    return data


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _texts(entries: Mapping[str, Any]) -> dict[str, str]:
    """The entries of an object. Raises AttributeError if it is none."""
    return {name: str(value) for name, value in entries.items()}


@dataclass(frozen=True)
class CheckedEngine:
    """An engine that was found sound; ``provenance`` is None if it has none."""

    manifest: Manifest
    provenance: Provenance | None


def check_engine(directory: Path) -> CheckedEngine:
    """Hold an engine against its provenance, or, if it has none, against the checksums in the engine itself.

    Raises EngineError.
    """
    directory = Path(directory)
    if (directory / PROVENANCE_FILE).exists():
        provenance = verify_engine(directory)
        return CheckedEngine(read_engine(directory / ENGINE_FILE).manifest, provenance)
    manifest = _check_manifest(directory)
    for name in manifest.engine_files:
        Engine(str(directory / name))  # the runtime's reader reads the weights, too
    return CheckedEngine(manifest, None)


def verify_engine(directory: Path) -> Provenance:
    """Hold every file of an engine against its provenance; returns that.

    Raises EngineError that names all files that differ, are missing, or are not in the statement, or if the engine
    cannot be read, or if its manifest is not that beside it.
    """
    directory = Path(directory)
    provenance = read_provenance(directory)
    found = {path.name: path for path in directory.iterdir() if path.name != PROVENANCE_FILE}
    problems = [f"{name} is missing" for name in sorted(provenance.files.keys() - found.keys())]
    problems += [f"{name} is not in the statement" for name in sorted(found.keys() - provenance.files.keys())]
    try:
        digests = {name: sha256_of(found[name]) for name in sorted(found.keys() & provenance.files.keys())}
    except OSError as error:
        raise EngineError(f"cannot read {error.filename}: {error.strerror}: {_REMEDY}") from error
    for name, digest in digests.items():
        if digest != provenance.files[name]:
            problems.append(f"the sha256 of {name} is {digest}, expected {provenance.files[name]}")
    if problems:
        raise EngineError(f"{directory} is not the engine of its {PROVENANCE_FILE}: {'; '.join(problems)}: {_REMEDY}")
    _check_manifest(directory)
    return provenance


def _check_manifest(directory: Path) -> Manifest:
    """The manifest of an engine. Raises EngineError if the files beside the engine are not those that it names."""
    manifest = read_engine(directory / ENGINE_FILE).manifest
    try:
        if parse_json(_read_whole(directory / CONFIG_FILE), CONFIG_FILE) != json.loads(manifest.to_json()):
            raise EngineError(f"{directory / CONFIG_FILE} is not the manifest of {ENGINE_FILE}: {_REMEDY}")
        for name in TOKENIZER_FILES:
            present = (directory / name).exists()
            checksum = f"{crc32c(_read_whole(directory / name)):08x}" if present else None
            if checksum != manifest.files.get(name):
                raise EngineError(f"{directory / name} is not the one that {ENGINE_FILE} names: {_REMEDY}")
    except OSError as error:
        raise EngineError(f"cannot read {error.filename}: {error.strerror}: {_REMEDY}") from error
    return manifest
