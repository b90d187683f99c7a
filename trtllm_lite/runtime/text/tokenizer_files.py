"""Reads the tokenizer files of an engine, which are untrusted: known names, plain files of bounded size."""

from collections.abc import Callable, Mapping
from pathlib import Path

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.engine.format import TOKENIZER_FILES, max_file_bytes
from trtllm_lite.errors import EngineError, shown

TOKENIZER_FILE, SETTINGS_FILE = TOKENIZER_FILES


def read_checked(directory: Path, checksums: Mapping[str, str], crc32c: Callable[[bytes], int]) -> dict[str, bytes]:
    """The files of a manifest, by name, each checked against its checksum (8 hex digits).

    Raises EngineError, before anything is read, for a name that no tokenizer file has, a file outside ``directory``, or
    one that is no plain file; then for a file that is too large or differs from its checksum.
    """
    for name in checksums:
        if name not in TOKENIZER_FILES:
            raise EngineError(
                f"the manifest of {directory} names the file {shown(name)}: expected {' or '.join(TOKENIZER_FILES)}; "
                "build again"
            )
    return {name: _read_checked(directory / name, checksum, crc32c) for name, checksum in checksums.items()}


def read_plain(path: Path, *, inside: Path | None = None) -> bytes:
    """The content of a tokenizer file, which has to be in the directory ``inside`` if it is given.

    Raises EngineError if it is not a plain file, too large for its kind, or elsewhere.
    """
    try:
        return read_foreign(path, max_file_bytes(path.name), inside=inside)
    except OSError as error:
        raise EngineError(
            f"{path} cannot be read ({error.strerror}): copy the whole directory it belongs to, files and not links "
            "(`cp -rL`), or build again"
        ) from error


def _read_checked(path: Path, checksum: str, crc32c: Callable[[bytes], int]) -> bytes:
    content = read_plain(path, inside=path.parent)
    if f"{crc32c(content):08x}" != checksum:
        raise EngineError(
            f"{path} is not the file that the engine was built with: it was changed or damaged after the build; copy "
            "the whole engine directory again, or build again"
        )
    return content
