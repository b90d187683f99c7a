"""Checks the keys of clients."""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.serve.http.messages import is_header_value

_LONGEST_KEY = 512
_BEARER = "bearer "


class ApiKeys:
    """Keys that requests show as ``Authorization: Bearer KEY`` or, like Anthropic's clients, as ``x-api-key``.

    Only digests are kept, and all of them are compared, so that the time of a check reveals nothing about a key.
    """

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def from_file(cls, option: str, path: Path) -> "ApiKeys":
        """Read a key per line; empty lines and lines that begin with # are skipped. Messages call the file ``option``.

        Raises ArgumentError.
        """
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(
                f"{option} {path} cannot be read ({error}): expected a file with one key per line"
            ) from error
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            raise ArgumentError(f"{option} {path} holds no key: write one key per line")
        for number, key in enumerate(keys, 1):
            if not is_header_value(key, _LONGEST_KEY):
                raise ArgumentError(
                    f"key {number} of {option} {shown(str(path))} is longer than {_LONGEST_KEY} characters, or has "
                    "characters other than visible ASCII: change it"
                )
        return cls(keys)

    def shown_in(self, headers: Mapping[str, str]) -> str | None:
        """A name for the key that a request shows, which does not reveal the key; None if it shows none of these."""
        given = headers.get("authorization", "")
        key = given[len(_BEARER) :].strip() if given.lower().startswith(_BEARER) else headers.get("x-api-key", "")
        digest = _digest(key)
        found = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex() if any(found) else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
