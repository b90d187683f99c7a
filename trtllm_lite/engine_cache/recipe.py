"""Describes how an engine is made, and computes the cache's keys: digests of everything that an entry depends on."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtllm_lite.common.foreign_files import open_foreign
from trtllm_lite.common.gguf_parts import parts_of
from trtllm_lite.common.vocabulary import FLOAT32, MAX_BYTES

# The digest of a file of at most _WHOLE bytes covers all bytes; the digest of a larger file covers _END bytes at each
# end and the date, unless its SHA-256 is known.
_WHOLE = 1 << 24
_END = 1 << 16
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Conversion:
    """How a checkpoint is made from a model.

    ``ignore_config_keys``, sorted, are left out of the model's config; with ``dequantize`` the blocks of a quantized
    model are expanded to ``dtype``.
    """

    dtype: str = "auto"
    ignore_config_keys: tuple[str, ...] = ()
    dequantize: bool = False


@dataclass(frozen=True)
class Recipe:
    """How an engine is made; None leaves a limit to the model, the builder's defaults and ``device_memory``.

    ``device_memory`` is the memory of each GPU in bytes; None if limits are not fitted to it. ``quantization`` has
    those fields of :class:`trtllm_lite.quantize.network.Recipe` that are given; ``kv_cache_dtype`` is the cache's type,
    ``key_cache_dtype`` that of keys beside values in 8 bits, ``state_dtype`` that of the matrices of recurrent layers.
    """

    target: str
    conversion: Conversion
    limits: Mapping[str, int | None]
    tokens_per_block: int | None
    flags: Mapping[str, bool]
    device_memory: int | None = None
    quantization: Mapping[str, Any] = field(default_factory=dict)
    kv_cache_dtype: str = "auto"
    key_cache_dtype: str = "auto"
    state_dtype: str = FLOAT32

    def build_arguments(self) -> dict[str, Any]:
        """Arguments of ``build_engine``."""
        return {
            **self.limits,
            "tokens_per_block": self.tokens_per_block,
            **self.flags,
            "kv_cache_dtype": self.kv_cache_dtype,
            "key_cache_dtype": self.key_cache_dtype,
            "state_dtype": self.state_dtype,
            "target": self.target,
            "device_memory": self.device_memory,
        }


def engine_key(source: Path, recipe: Recipe) -> str:
    """The key of the engine that ``recipe`` makes of the model or checkpoint ``source``. Raises OSError."""
    return _key(source, "engine", recipe, {})


def checkpoint_key(source: Path, conversion: Conversion, sha256: Mapping[str, str]) -> str:
    """The key of the checkpoint made from the model ``source``. Raises OSError.

    ``sha256`` has digests by name, in hexadecimal, of files that were checked against them.
    """
    return _key(source, "checkpoint", conversion, sha256)


def _key(source: Path, kind: str, how: Any, sha256: Mapping[str, str]) -> str:
    """A digest of the model's files, of the kind of result and its settings, and of the code that makes it."""
    digest = hashlib.sha256(repr((kind, how, code_digest())).encode())
    root = source if source.is_dir() else source.parent
    # An encoder's folders contain a config of its pooling.
    found = (*source.iterdir(), *source.glob("*/config.json")) if source.is_dir() else parts_of(source)
    for path in sorted(path for path in found if path.is_file()):
        name = path.relative_to(root).as_posix()
        digest.update(f"\n{name} {path.stat().st_size} ".encode())
        digest.update(bytes.fromhex(sha256[name]) if name in sha256 else _content(path))
    return digest.hexdigest()[:32]


def _content(path: Path) -> bytes:
    status = path.stat()
    with open_foreign(path, MAX_BYTES) as file:
        if status.st_size <= _WHOLE:
            return hashlib.sha256(file.read()).digest()
        start = file.read(_END)
        file.seek(-_END, os.SEEK_END)
        return hashlib.sha256(start + file.read()).digest() + str(status.st_mtime_ns).encode()


def _entry_points() -> Iterator[EntryPoint]:
    """What other packages declare for this one."""
    found = entry_points()
    return (entry for group in found.groups if group.startswith("trtllm_lite.") for entry in found.select(group=group))


@cache
def code_digest() -> str:
    """A digest of every file of the package and its plugins, as files may change while the version stays.

    It covers other packages whose families, operators and passes are installed, too.
    """
    from trtllm_lite import plugins

    entries = sorted((e.dist.name, e.dist.version, e.value) for e in _entry_points() if e.dist is not None)
    digest = hashlib.sha256(repr(entries).encode())
    names = {value.partition(":")[0].partition(".")[0] for _, _, value in entries}
    specs = [find_spec(name) for name in sorted(names)]
    others = [place for spec in specs if spec is not None for place in spec.submodule_search_locations or ()]
    for root in (_PACKAGE, _PACKAGE / "timing_caches", *map(Path, [*plugins.__path__, *others])):
        for path in sorted(file for kind in ("*.py", "*.toml", "*.cuh", "*.json") for file in root.rglob(kind)):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
