"""Runs kernels of ``plugins/`` on the CPU, on torch's CPU tensors, as ``tests/gpu/device.py`` runs them on a GPU."""

import ctypes
import hashlib
import itertools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

from tests.emulated.ptx import translate
from tests.gpu.device import PLUGINS, Argument, argument_value, check_map

_HERE = Path(__file__).parent
_RUNTIME = ("scheduler", "memory", "barriers", "copies", "matrices")
_FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")
_COMPILER = os.environ.get("CXX", "g++")
_MESSAGE_BYTES = 8192


class EmulationError(Exception):
    """A launch that would hang, or do what the hardware leaves undefined; names the threads and what they do."""


class _Index(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class _Range(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("bytes", ctypes.c_uint64))


class _LaunchConfig(ctypes.Structure):
    """``LaunchConfig`` of machine.h."""

    _fields_ = (
        ("grid", _Index),
        ("block", _Index),
        ("shared_bytes", ctypes.c_uint),
        ("cluster", ctypes.c_uint),
        ("resident_blocks", ctypes.c_uint),
        ("num_ranges", ctypes.c_uint),
        ("seed", ctypes.c_uint64),
        ("ranges", ctypes.POINTER(_Range)),
    )


@cache
def _folder() -> Path:
    """Where objects are kept, by their content; other users cannot write there."""
    folder = Path(tempfile.gettempdir()) / f"trtllm_lite_emulated_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _run(*command: str | Path, text: str | None = None) -> str:
    done = subprocess.run([str(word) for word in command], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EmulationError(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return done.stdout


def _built(name: str, content: str, *command: str | Path, text: str | None = None) -> Path:
    """The output of ``command -o FILE``, kept under a hash of ``content`` and the command."""
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
def _runtime() -> tuple[Path, ...]:
    def compiled(name: str) -> Path:
        source = _HERE / f"{name}.cc"
        return _built(f"{name}.o", _headers() + source.read_text(), _COMPILER, *_FLAGS, "-O2", "-c", source)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return tuple(pool.map(compiled, _RUNTIME))


@cache
def _ptx() -> Path:
    """What ``-include`` finds as compiled already: parsing ptx.h takes longer than compiling most kernels."""
    compiled = _built("ptx.h.gch", _headers(), _COMPILER, *_FLAGS, "-x", "c++-header", _HERE / "ptx.h")
    return compiled.with_suffix("")


@cache
def _compile(source: Path, name: str, macros: tuple[str, ...]) -> ctypes.CDLL:
    """The kernel's library."""
    kernel = translate(_run(_COMPILER, "-std=c++20", "-E", "-x", "c++", *macros, "-I", PLUGINS, source))
    cluster = re.search(r"__cluster_dims__\((.+), 1, 1\)", kernel)
    launcher = f"""
extern "C" int emulated_cluster() {{ return {cluster[1] if cluster is not None else 1}; }}
extern "C" bool emulated_launch(const emulated::LaunchConfig* config, void* const* arguments, char* message,
                                unsigned message_bytes) {{
  return emulated::launch_kernel({name}, *config, arguments, message, message_bytes);
}}
"""
    text = kernel + launcher
    options = ("-include", _ptx(), "-x", "c++", "-", "-x", "none", *_runtime())
    library = _built(f"{name}.so", text, _COMPILER, *_FLAGS, "-shared", *options, text=text)
    return ctypes.CDLL(str(library))


class Emulator:
    """A :class:`tests.gpu.device.Machine`. Its ``num_sms`` blocks run at the same time; so should they on a GPU."""

    device = "cpu"

    def __init__(self, arch: str = "sm_90a", num_sms: int = 3, seed: int = 0) -> None:
        self.arch, self.num_sms = arch, num_sms
        self.seeds: Iterator[int] = itertools.count(seed)

    def kernel(
        self, source: str, name: str, threads: int, shared_bytes: int, defines: dict[str, int | str]
    ) -> "EmulatedKernel":
        return EmulatedKernel(self, source, name, threads, shared_bytes, defines)

    def tensor_map(self, tensor: torch.Tensor, rows: int, columns: int, box: tuple[int, int]) -> ctypes.Structure:
        check_map(tensor, rows, columns)
        assert box[1] * tensor.itemsize == 128
        return _Matrix(tensor.data_ptr(), rows, columns, tensor.itemsize, box[0])


class _Matrix(ctypes.Structure):
    """``Matrix`` of machine.h, with as many bytes as the driver's."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_uint64),
        ("columns", ctypes.c_uint64),
        ("item_bytes", ctypes.c_uint),
        ("box_rows", ctypes.c_uint),
        ("unused", ctypes.c_char * 96),
    )


class EmulatedKernel:
    """As :class:`tests.gpu.device.Kernel`; every launch has another seed, which errors tell."""

    def __init__(
        self, machine: Emulator, source: str, name: str, threads: int, shared_bytes: int, defines: dict[str, int | str]
    ) -> None:
        self.machine, self.name, self.threads, self.shared_bytes = machine, name, threads, shared_bytes
        number = int(machine.arch.removeprefix("sm_").removesuffix("a")) * 10
        macros = sorted((defines | {"__CUDA_ARCH__": number}).items())
        library = _compile(PLUGINS / source, name, tuple(f"-D{key}={value}" for key, value in macros))
        self._cluster: int = library.emulated_cluster()
        self._launch = library.emulated_launch
        self._launch.restype = ctypes.c_bool

    def __call__(
        self,
        *arguments: Argument,
        grid: int | tuple[int, int, int],
        programmatic: bool = False,  # noqa: ARG002 (launches never overlap)
        memory: Sequence[torch.Tensor] = (),
    ) -> None:
        values = [argument_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        tensors = [*memory, *(argument for argument in arguments if isinstance(argument, torch.Tensor))]
        ranges = (_Range * len(tensors))(*(_Range(tensor.data_ptr(), tensor.nbytes) for tensor in tensors))
        config = _LaunchConfig(
            grid=_Index(*((grid, 1, 1) if isinstance(grid, int) else grid)),
            block=_Index(self.threads, 1, 1),
            shared_bytes=self.shared_bytes,
            cluster=self._cluster,
            resident_blocks=max(self.machine.num_sms, self._cluster),
            num_ranges=len(ranges),
            seed=next(self.machine.seeds),
            ranges=ranges,
        )
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if not self._launch(ctypes.byref(config), pointers, message, _MESSAGE_BYTES):
            raise EmulationError(f"{self.name} (seed {config.seed}): {message.value.decode()}")
