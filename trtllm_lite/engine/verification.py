"""Checks engines against their provenance, and provenance against signatures; signs provenance."""

import json
from dataclasses import dataclass
from pathlib import Path

from trtllm_lite._core import Engine, crc32c
from trtllm_lite.common.files import write_file, writing
from trtllm_lite.common.foreign_files import sha256_of
from trtllm_lite.engine.format import COMPANION_FILES, CONFIG_FILE, ENGINE_FILE
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.provenance import (
    PROVENANCE_FILE,
    REMEDY,
    Provenance,
    described_files,
    read_engine_file,
    read_provenance,
    read_statement,
)
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.engine.records import parse_json
from trtllm_lite.engine.signature import SIGNATURE_FILE, check_signature, signed
from trtllm_lite.errors import EngineError


@dataclass(frozen=True)
class Trust:
    """Who vouches for a statement: ``key_id`` is the id of the key that was checked, None if none was.

    Without a checked key anybody may have written both files and statement; ``is_signed``: there is a signature, valid
    or not.
    """

    key_id: str | None = None
    is_signed: bool = False

    @property
    def words(self) -> str:
        """A description for people."""
        if self.key_id is not None:
            return f"signed by the key {self.key_id}"
        if self.is_signed:
            return "its signature was not checked, for which --key FILE is needed"
        return "unsigned: anybody may have written the files and the statement"


def trust_in(directory: Path, key_file: Path | None) -> Trust:
    """Who vouches for the statement in ``directory``. Raises the errors of :func:`check_signature`."""
    if key_file is None:
        return Trust(is_signed=(directory / SIGNATURE_FILE).exists())
    return Trust(check_signature(read_statement(directory), directory, key_file), is_signed=True)


@dataclass(frozen=True)
class CheckedEngine:
    """An engine without defects; ``provenance`` is None if it has none, ``trust`` tells who vouches for it."""

    manifest: Manifest
    provenance: Provenance | None
    trust: Trust


def check_engine(directory: Path, *, require_provenance: bool = False, key_file: Path | None = None) -> CheckedEngine:
    """Check an engine against its provenance, or, if it has none, against the checksums in the engine itself.

    With ``require_provenance`` or ``key_file``, a public key, an engine without provenance is refused; with the key,
    also one whose provenance the key has not signed. Raises EngineError, ArgumentError for a file that is no public
    key.
    """
    directory = Path(directory)
    if require_provenance or key_file is not None or (directory / PROVENANCE_FILE).exists():
        provenance = verify_engine(directory)
        manifest = read_engine(directory / ENGINE_FILE).manifest
        return CheckedEngine(manifest, provenance, trust_in(directory, key_file))
    manifest = _check_manifest(directory)
    for name in manifest.engine_files:
        Engine(str(directory / name))  # the runtime's reader checks the weights as well
    return CheckedEngine(manifest, None, Trust())


def verify_engine(directory: Path) -> Provenance:
    """Check every file of an engine against its provenance; returns the provenance.

    Raises EngineError that names all files that differ, are missing, or are not in the statement, or if the engine
    cannot be read, or if its manifest differs from the file beside it.
    """
    directory = Path(directory)
    provenance = read_provenance(directory)
    found = described_files(directory)
    problems = [f"{name} is missing" for name in sorted(provenance.files.keys() - found.keys())]
    problems += [f"{name} is not in the statement" for name in sorted(found.keys() - provenance.files.keys())]
    try:
        digests = {
            name: sha256_of(found[name], inside=directory) for name in sorted(found.keys() & provenance.files.keys())
        }
    except OSError as error:
        raise EngineError(f"cannot read {error.filename}: {error.strerror}: {REMEDY}") from error
    for name, digest in digests.items():
        if digest != provenance.files[name]:
            problems.append(f"the sha256 of {name} is {digest}, expected {provenance.files[name]}")
    if problems:
        raise EngineError(f"{directory} is not the engine of its {PROVENANCE_FILE}: {'; '.join(problems)}: {REMEDY}")
    _check_manifest(directory)
    return provenance


def _check_manifest(directory: Path) -> Manifest:
    """The manifest of an engine. Raises EngineError if files beside the engine differ from those it names."""
    manifest = read_engine(directory / ENGINE_FILE).manifest
    try:
        if parse_json(read_engine_file(directory / CONFIG_FILE), CONFIG_FILE) != json.loads(manifest.to_json()):
            raise EngineError(f"{directory / CONFIG_FILE} is not the manifest of {ENGINE_FILE}: {REMEDY}")
        for name in COMPANION_FILES:
            present = (directory / name).exists()
            checksum = f"{crc32c(read_engine_file(directory / name)):08x}" if present else None
            if checksum != manifest.files.get(name):
                raise EngineError(f"{directory / name} is not the one that {ENGINE_FILE} names: {REMEDY}")
    except OSError as error:
        raise EngineError(f"cannot read {error.filename}: {error.strerror}: {REMEDY}") from error
    return manifest


def sign_provenance(directory: Path, key_file: Path) -> str:
    """Sign the statement in ``directory`` by the private key of ``key_file``; returns the key's id.

    Raises EngineError if the engine differs from its statement, ArgumentError for a file that is no such key,
    OutputError if the signature cannot be written.
    """
    directory = Path(directory)
    verify_engine(directory)
    envelope, key_id = signed(read_statement(directory), key_file)
    path = directory / SIGNATURE_FILE
    with writing(str(path), "check the permissions"):
        write_file(path, envelope.encode())
    return key_id
