"""Checks the files of a model against checksums that a user gave."""

from collections.abc import Mapping
from pathlib import Path

from trtllm_lite.common.foreign_files import sha256_of
from trtllm_lite.common.gguf_parts import parts_of
from trtllm_lite.errors import ConvertError, shown

_DIGITS = frozenset("0123456789abcdef")


def check_files(model: Path, sha256: Mapping[str, str]) -> None:
    """Raise ConvertError unless each file named in ``sha256`` has this SHA-256 (hexadecimal), and all weights have one.

    ``model`` is a directory, or a GGUF file, for which the other files of the model may be named too. Without checksums
    nothing is checked.
    """
    if not sha256:
        return
    beside = parts_of(model) if model.is_file() else model.iterdir()
    files = {path.name: path for path in beside if path.is_file()}
    unknown = [name for name in sha256 if name not in files]
    if unknown:
        raise ConvertError(
            f"sha256 names {', '.join(map(shown, unknown))}, and {model} has no such file: correct the name"
        )
    weights = [name for name in files if name.endswith((".safetensors", ".gguf"))]
    missing = sorted(name for name in weights if name not in sha256)
    if missing:
        raise ConvertError(
            f"sha256 has checksums for {model}, and none for its weights {', '.join(missing)}: add theirs, which "
            "`sha256sum` prints"
        )
    for name, expected in sha256.items():
        if len(expected) != 64 or not _DIGITS.issuperset(expected):
            raise ConvertError(f"sha256 of {name}: expected 64 hexadecimal digits, found {shown(expected)}")
        found = sha256_of(files[name])
        if found != expected:
            raise ConvertError(
                f"the sha256 of {files[name]} is {found}, expected {expected}: fetch the model again, or, if it was "
                "changed on purpose, give the new checksum"
            )
