"""Compiles kernels of ``plugins/``, and the emulator that runs them, for the CPU; each is compiled once."""

import contextlib
import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.emulated.ptx import translate
from tests.gpu.device import PLUGINS
from trtllm_lite.plugins.generated import HEADERS, write_headers

_HERE = Path(__file__).parent
_RUNTIME = ("launches", "scheduler", "messages", "memory", "barriers", "copies", "matrices")
_FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")
# Kernels need these libraries only: searching the others takes longer than linking.
_LIBRARIES = ("-nodefaultlibs", "-lm", "-lgcc")
_COMPILER = os.environ.get("CXX", "g++")


class EmulationError(Exception):
    """A launch that would hang, or do what the hardware leaves undefined; names the threads and what they do."""


@cache
def _folder() -> Path:
    """The folder in which objects are kept under a hash of their content; other users cannot write there."""
    folder = Path(tempfile.gettempdir()) / f"trtllm_lite_emulated_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _run(*command: str | Path, text: str | None = None) -> str:
    done = subprocess.run([str(word) for word in command], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EmulationError(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return done.stdout


def _built(name: str, content: str, *command: str | Path, text: str | None = None) -> Path:
    """The path of the output of ``command -o FILE``, kept under a hash of ``content`` and the command."""
    key = hashlib.sha256("\0".join([content, *map(str, command)]).encode()).hexdigest()[:32]
    target = _folder() / f"{key}-{name}"
    if not target.is_file():
        with tempfile.TemporaryDirectory(dir=_folder()) as scratch:
            made = Path(scratch) / "made"
            _run(*command, "-o", made, text=text)
            made.replace(target)
    return target


@cache
def _headers() -> str:
    return "".join(path.read_text() for path in sorted(_HERE.glob("*.h")))


@cache
def _generated() -> Path:
    """A folder of generated headers; its name, which preprocessed sources contain, is a hash of their content."""
    texts = "\0".join(text() for text in HEADERS.values())
    folder = _folder() / f"headers-{hashlib.sha256(texts.encode()).hexdigest()[:32]}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=_folder()) as scratch:
            write_headers(Path(scratch) / "made")
            with contextlib.suppress(OSError):  # another process was faster
                (Path(scratch) / "made").rename(folder)
    return folder


@cache
def _runtime() -> Path:
    """The object code of the emulated machine, which is the same for all kernels.

    It is one translation unit, so that the compiler parses the headers of the standard library, its slowest part,
    only once.
    """
    text = "\n".join(f'#include "{_HERE / name}.cc"' for name in _RUNTIME)
    content = _headers() + "".join((_HERE / f"{name}.cc").read_text() for name in _RUNTIME)
    return _built("machine.so", content, _COMPILER, *_FLAGS, "-O3", "-shared", "-x", "c++", "-", text=text)


@cache
def machine_library() -> ctypes.CDLL:
    """The library that has ``emulated_run`` of machine.h."""
    return ctypes.CDLL(str(_runtime()))


@cache
def _ptx() -> Path:
    """A precompiled ptx.h for ``-include``: parsing the header takes longer than compiling most kernels."""
    compiled = _built("ptx.h.gch", _headers(), _COMPILER, *_FLAGS, "-x", "c++-header", _HERE / "ptx.h")
    return compiled.with_suffix("")


@cache
def compile_kernel(source: Path, name: str, macros: tuple[str, ...]) -> ctypes.CDLL:
    """A library with ``emulated_kernel``, a ``Launch.kernel``, and ``emulated_cluster``, the blocks of a cluster."""
    kernel = translate(
        _run(_COMPILER, "-std=c++20", "-E", "-x", "c++", *macros, "-I", PLUGINS, "-I", _generated(), source)
    )
    cluster = re.search(r"__cluster_dims__\((.+), 1, 1\)", kernel)
    entries = f"""
extern "C" int emulated_cluster() {{ return {cluster[1] if cluster is not None else 1}; }}
extern "C" void emulated_kernel(void* const* arguments) {{ emulated::call({name}, arguments); }}
"""
    text = kernel + entries
    options = ("-include", _ptx(), "-x", "c++", "-", "-x", "none", _runtime(), *_LIBRARIES)
    return ctypes.CDLL(str(_built(f"{name}.so", text, _COMPILER, *_FLAGS, "-shared", *options, text=text)))
