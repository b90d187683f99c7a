"""Reads the tokenizer files of an engine, which may come from anywhere: known names, plain files of bounded size."""

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from trtllm_lite.engine.format import TOKENIZER_FILES, max_file_bytes
from trtllm_lite.errors import EngineError, shown

TOKENIZER_FILE, SETTINGS_FILE = TOKENIZER_FILES


def read_checked(directory: Path, checksums: Mapping[str, str], crc32c: Callable[[bytes], int]) -> dict[str, bytes]:
    """The files of a manifest, by name, each held against its checksum (8 hex digits).

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


def read_plain(path: Path) -> bytes:
    """The content of a tokenizer file. Raises EngineError if it is no plain file, or larger than any of its kind."""
    limit = max_file_bytes(path.name)
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise EngineError(f"{path} is not a plain file: put the tokenizer's file in its place")
            content = file.read(limit + 1)
    except OSError as error:
        raise EngineError(
            f"{path} cannot be read ({error.strerror}): copy the whole directory it belongs to, or build again"
        ) from error
    if len(content) > limit:
        raise EngineError(f"{path} has {status.st_size:,} bytes, expected at most {limit:,}: it is no tokenizer's file")
    return content


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # otherwise opening a FIFO would wait for a writer


def _read_checked(path: Path, checksum: str, crc32c: Callable[[bytes], int]) -> bytes:
    if not path.resolve().is_relative_to(path.parent.resolve()):
        raise EngineError(
            f"{path} is a link to a file outside the engine's directory: copy the file itself there (`cp -L`)"
        )
    content = read_plain(path)
    if f"{crc32c(content):08x}" != checksum:
        raise EngineError(
            f"{path} is not the file that the engine was built with: it was changed or damaged after the build; copy "
            "the whole engine directory again, or build again"
        )
    return content
