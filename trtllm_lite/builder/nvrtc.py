"""Compiles device kernels to cubins on any machine: no GPU, no driver, no nvcc, no CUDA headers.

NVRTC gets a kernel and its includes as strings, so a compilation depends on nothing but the files under
``plugins/`` and the headers that its ``generated.py`` makes, the defines, the target and the compiler. That makes the
cache below exact: its key is a hash of all of them.
Kernels include each other with quotes, by paths from ``plugins/``; ``#include <...>`` is refused, because a header from
outside would change the machine code without changing the key.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trtllm_lite.common.files import cache_directory, write_file
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins import packages
from trtllm_lite.plugins.generated import HEADERS

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|(\S+))', re.MULTILINE)
# minimal leaves out textures, surfaces and the device runtime, which no kernel uses: same machine code, compiled
# sooner.
_OPTIONS = ("-std=c++20", "--minimal")
_CUBIN_MAGIC = b"\x7fELF"
_CACHE_FORMAT = 1
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Cubin:
    """Machine code of one source file for one target.

    ``key`` is the content hash that names it in the cache; ``image`` is an ELF file for ``cuModuleLoadData``.
    """

    key: str
    image: bytes


def default_cache_dir() -> Path:
    """The folder of cubins that builds share: ``$XDG_CACHE_HOME/trtllm_lite/cubins``."""
    return cache_directory("cubins")


def compile_kernel(
    source_path: Path,
    defines: Mapping[str, int | str],
    arch: str,
    *,
    include_root: Path | None = None,
    cache_dir: Path | None = None,
) -> Cubin:
    """Compile ``source_path`` for ``arch`` (``sm_90a``) with ``defines`` as macros, or take the cubin from the cache.

    ``include_root`` is the folder that quoted includes start from (default: ``plugins/``, and for operators of
    other packages the folder that has theirs), ``cache_dir`` the cache (default: :func:`default_cache_dir`). A damaged
    cache entry is compiled again, and an unwritable cache is an error.

    Raises BuildError if the compiler is not installed, the target is unknown, or the source or something it includes
    is missing or does not compile; the message then carries the compiler's log.
    """
    source = _read(source_path, source_path)
    headers = _headers(source_path, source, packages.source_path if include_root is None else include_root.joinpath)
    options = [*_OPTIONS, f"-arch={arch}", *(f"-D{name}={value}" for name, value in sorted(defines.items()))]
    key = _key(options, source_path.name, source, headers)
    entry = (cache_dir if cache_dir is not None else default_cache_dir()) / f"{key}.cubin"
    image = _load(entry)
    if image is None:
        _check_arch(_nvrtc(), arch)
        image = _compile(_nvrtc(), source_path, source, headers, options)
        _store(entry, image)
    return Cubin(key, image)


@cache
def _nvrtc() -> Any:
    try:
        module = import_module("cuda.bindings.nvrtc")
        module.nvrtcVersion()  # the first call loads the library
    except (ImportError, OSError, RuntimeError) as error:
        raise BuildError(
            f"compiling for an NVIDIA GPU needs the packages cuda-bindings and nvidia-cuda-nvrtc, but {error}: "
            "pip install 'trtllm_lite[cuda]'"
        ) from error
    return module


@cache
def compiler_version() -> str:
    """The compiler's identity: the exact build of the wheel, which need not be loaded, or the version of NVRTC."""
    try:
        return f"nvidia-cuda-nvrtc {version('nvidia-cuda-nvrtc')}"
    except PackageNotFoundError:  # NVRTC came with a CUDA toolkit
        major, minor = _checked(_nvrtc().nvrtcVersion(), "nvrtcVersion")
        return f"nvrtc {major}.{minor}"


def _check_arch(nvrtc: Any, arch: str) -> None:
    (supported,) = _checked(nvrtc.nvrtcGetSupportedArchs(), "nvrtcGetSupportedArchs")
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if match is None or int(match[1]) not in supported:
        names = ", ".join(f"sm_{number}" for number in supported)
        raise BuildError(f"expected a target that {compiler_version()} knows ({names}), got {arch!r}")


def _read(path: Path, includer: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(f"cannot read {path}, which {includer} needs: {error}: reinstall trtllm_lite") from error


def _headers(source_path: Path, source: str, locate: Callable[[str], Path]) -> dict[str, str]:
    """Everything that ``source`` includes, transitively: include name -> text, sorted by name.

    Conditional includes count whether or not they are taken: a larger key is safe, a smaller one is not.
    """
    found: dict[str, str] = {}
    pending = [(source_path, source)]
    while pending:
        path, text = pending.pop()
        for quoted, other in _INCLUDE.findall(text):
            if other:
                raise BuildError(f'{path} includes {other}: kernels may include only "..." files of plugins/')
            if quoted not in found:
                found[quoted] = HEADERS[quoted]() if quoted in HEADERS else _read(locate(quoted), path)
                pending.append((locate(quoted), found[quoted]))
    return dict(sorted(found.items()))


def _key(options: list[str], name: str, source: str, headers: dict[str, str]) -> str:
    described = json.dumps([_CACHE_FORMAT, compiler_version(), options, name, source, list(headers.items())])
    return hashlib.sha256(described.encode()).hexdigest()


def _compile(nvrtc: Any, source_path: Path, source: str, headers: dict[str, str], options: list[str]) -> bytes:
    texts = [text.encode() for text in headers.values()]
    names = [name.encode() for name in headers]
    created = nvrtc.nvrtcCreateProgram(source.encode(), str(source_path).encode(), len(texts), texts, names)
    (program,) = _checked(created, "nvrtcCreateProgram")
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(status) != 0:
            log = _fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
            raise BuildError(f"{source_path} does not compile with {' '.join(options)} ({compiler_version()}):\n{log}")
        return _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _fetch(get_size: Any, get: Any, program: Any) -> bytes:
    (size,) = _checked(get_size(program), get_size.__name__)
    buffer = b" " * size  # the binding takes bytes and fills them in place
    _checked(get(program, buffer), get.__name__)
    return buffer


def _checked(result: tuple[Any, ...], call: str) -> tuple[Any, ...]:
    status, *values = result
    if int(status) != 0:
        raise BuildError(f"{call} failed with {status}: check the installation of nvidia-cuda-nvrtc")
    return tuple(values)


def _load(entry: Path) -> bytes | None:
    """The cached image, or None if it is absent or damaged; the digest at its end tells."""
    try:
        data = entry.read_bytes()
    except OSError:
        return None
    image, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    return image if image[:4] == _CUBIN_MAGIC and hashlib.sha256(image).digest() == digest else None


def _store(entry: Path, image: bytes) -> None:
    """Write an image to the cache in one piece, so that a concurrent build never reads half of it."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_file(entry, image + hashlib.sha256(image).digest())
    except OSError as error:
        raise BuildError(
            f"cannot write the kernel cache {entry.parent}: {error}: free space there or set XDG_CACHE_HOME"
        ) from error
