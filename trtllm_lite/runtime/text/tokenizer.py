"""The tokenizer that travels in the engine directory."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from trtllm_lite.errors import ArgumentError, EngineError
from trtllm_lite.runtime.text.chat import ChatTemplate

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"


class Tokenizer:
    """Text to token ids and back, and chat messages to text.

    ``settings`` is the content of tokenizer_config.json: special token strings and the chat template.
    """

    def __init__(self, backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.chat_template = ChatTemplate.from_settings(settings)

    @classmethod
    def from_dir(cls, directory: Path, checksums: dict[str, str], crc32c: Callable[[bytes], int]) -> "Tokenizer | None":
        """Read the tokenizer files of an engine and hold them against the manifest's checksums (8 hex digits).

        None if the engine was built without a tokenizer. Raises EngineError if a file is missing or differs.
        """
        contents = {name: _read_checked(directory / name, checksum, crc32c) for name, checksum in checksums.items()}
        return cls._parse(directory, contents) if TOKENIZER_FILE in contents else None

    @classmethod
    def from_files(cls, directory: Path) -> "Tokenizer":
        """Read tokenizer.json and, if there is one, tokenizer_config.json. Raises EngineError for a bad or no file."""
        paths = [directory / name for name in (TOKENIZER_FILE, SETTINGS_FILE) if (directory / name).is_file()]
        if directory / TOKENIZER_FILE not in paths:
            raise EngineError(f"{directory} holds no {TOKENIZER_FILE}: pass a directory that does")
        return cls._parse(directory, {path.name: path.read_bytes() for path in paths})

    @classmethod
    def _parse(cls, directory: Path, contents: dict[str, bytes]) -> "Tokenizer":
        try:
            backend = tokenizers.Tokenizer.from_buffer(contents[TOKENIZER_FILE])
        except Exception as error:  # the library raises nothing narrower
            raise EngineError(f"{directory / TOKENIZER_FILE} is not a tokenizer ({error}): convert again") from error
        try:
            settings = json.loads(contents.get(SETTINGS_FILE, b"{}"))
        except ValueError as error:
            raise EngineError(f"{directory / SETTINGS_FILE} is not JSON ({error}): convert again") from error
        return cls(backend, settings)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; ``add_special_tokens`` adds what the tokenizer puts around a prompt (often BOS).

        Raises ArgumentError if ``text`` holds lone surrogates: bytes that were not UTF-8 where they came from.
        """
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ArgumentError("the prompt is not valid Unicode text: expected UTF-8, found other bytes; re-encode it")
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids`` without special tokens; broken UTF-8 becomes U+FFFD."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=True))

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """As :meth:`decode`, with the names of special tokens."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))


def _read_checked(path: Path, checksum: str, crc32c: Callable[[bytes], int]) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EngineError(
            f"{path} belongs to the engine but cannot be read ({error.strerror}): copy the whole engine directory, or "
            "build again"
        ) from error
    found = f"{crc32c(content):08x}"
    if found != checksum:
        raise EngineError(
            f"{path} has checksum {found}, expected {checksum} from the engine's manifest: the file was changed or "
            "damaged after the build; copy the whole engine directory again, or build again"
        )
    return content
