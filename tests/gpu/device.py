"""Loads and launches kernels through the CUDA driver, on the tensors, streams and graphs of torch.

The driver is called through ctypes, as the runtime calls it through dlopen: nothing but libcuda.so.1.
"""

import ctypes
import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

REPOSITORY = Path(__file__).parents[2]
PLUGINS = REPOSITORY / "plugins"

_ATTRIBUTE_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DATA_TYPES = {1: 0, 2: 1}  # by bytes of an element: CU_TENSOR_MAP_DATA_TYPE_UINT8, UINT16
_SWIZZLE_128, _PROMOTE_256 = 3, 3  # of CUtensorMapSwizzle, CUtensorMapL2promotion
_ATTRIBUTE_PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


Argument = torch.Tensor | int | float | ctypes.Structure | None


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


@cache
def driver() -> ctypes.CDLL:
    """libcuda, with torch's context current."""
    torch.cuda.init()
    torch.cuda.synchronize()
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int, call: str) -> None:
    if status != 0:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"{call} failed: {status} {(text.value or b'').decode()}")


@cache
def nvrtc() -> ModuleType:
    """The builder's compiler, loaded by path: these tests need no built extension."""
    path = REPOSITORY / "trtllm_lite" / "builder" / "nvrtc.py"
    spec = importlib.util.spec_from_file_location("trtllm_lite_nvrtc", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def arch() -> str:
    """The target of the GPU here; ``a`` targets have instructions that only that chip supports."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@cache
def num_sms() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count


class Kernel:
    """One function of ``plugins/<source>``, specialised by ``defines``."""

    def __init__(self, source: str, name: str, threads: int, shared_bytes: int, defines: dict[str, int | str]) -> None:
        self.name, self.threads, self.shared_bytes = name, threads, shared_bytes
        cache_dir = Path(os.environ.get("TL_CUBIN_CACHE") or Path(tempfile.gettempdir()) / "trtllm_lite_cubins")
        if os.environ.get("TL_RACECHECK"):  # see release_stage() of cuda/async.cuh
            defines = defines | {"TL_RACECHECK": 1}
        cubin = nvrtc().compile_kernel(PLUGINS / source, defines, arch(), include_root=PLUGINS, cache_dir=cache_dir)
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(driver().cuModuleLoadData(ctypes.byref(module), cubin.image), f"loading {source}")
        _check(driver().cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()), f"finding {name}")
        if shared_bytes > 48 * 1024:
            status = driver().cuFuncSetAttribute(self._function, _ATTRIBUTE_MAX_DYNAMIC_SHARED, shared_bytes)
            _check(status, f"{name} with {shared_bytes} bytes of shared memory")

    def blocks_per_sm(self) -> int:
        blocks = ctypes.c_int()
        occupancy = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor
        status = occupancy(ctypes.byref(blocks), self._function, self.threads, ctypes.c_size_t(self.shared_bytes))
        _check(status, f"occupancy of {self.name}")
        return blocks.value

    def resident_clusters(self, cluster: int) -> int:
        """The number of clusters of this many blocks that the card can hold at the same time."""
        clusters, grid = ctypes.c_int(), (cluster * num_sms(), 1, 1)
        config = _LaunchConfig(grid=grid, block=(self.threads, 1, 1), shared_bytes=self.shared_bytes)
        status = driver().cuOccupancyMaxActiveClusters(ctypes.byref(clusters), self._function, ctypes.byref(config))
        _check(status, f"clusters of {self.name}")
        return clusters.value

    def __call__(
        self,
        *arguments: Argument,
        grid: int | tuple[int, int, int],
        programmatic: bool = False,
        memory: Sequence[torch.Tensor] = (),  # noqa: ARG002 (the GPU knows)
    ) -> None:
        """Launch on torch's current stream; ``programmatic`` lets it start before its predecessor has finished.

        ``memory`` are the tensors that pointers in structures point to; only an emulated kernel looks at them.
        """
        values = [argument_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        attribute = _LaunchAttribute(id=_ATTRIBUTE_PROGRAMMATIC, value=1)
        config = _LaunchConfig(
            grid=(grid, 1, 1) if isinstance(grid, int) else grid,
            block=(self.threads, 1, 1),
            shared_bytes=self.shared_bytes,
            stream=torch.cuda.current_stream().cuda_stream,
            attributes=ctypes.pointer(attribute),
            num_attributes=int(programmatic),
        )
        _check(
            driver().cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None), f"launching {self.name}"
        )


def argument_value(value: Argument) -> Any:
    """The ctypes value that a kernel gets for the argument."""
    if isinstance(value, ctypes.Structure):
        return value
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, torch.Tensor):
        assert value.is_contiguous()
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_float(value)


class _Map(ctypes.Structure):
    _fields_ = (("opaque", ctypes.c_uint64 * 16),)


def _encoded(tensor: torch.Tensor, rows: int, columns: int, box: tuple[int, int]) -> _Map:
    room = (ctypes.c_uint64 * 32)()  # the driver wants an address that is a multiple of 64
    at = (ctypes.addressof(room) + 63) // 64 * 64
    status = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(at),
        _DATA_TYPES[tensor.itemsize],
        2,
        ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * 2)(columns, rows),
        (ctypes.c_uint64 * 1)(columns * tensor.itemsize),
        (ctypes.c_uint32 * 2)(*box[::-1]),
        (ctypes.c_uint32 * 2)(1, 1),
        0,
        _SWIZZLE_128,
        _PROMOTE_256,
        0,
    )
    _check(status, f"a tensor map of [{rows}, {columns}] in boxes of {box}")
    return _Map.from_buffer_copy(ctypes.string_at(at, ctypes.sizeof(_Map)))


def check_map(tensor: torch.Tensor, rows: int, columns: int) -> None:
    """Check that a matrix for TMA covers exactly the memory of ``tensor``."""
    assert tensor.numel() == rows * columns, (tensor.shape, rows, columns)
    assert tensor.is_contiguous()


class Launchable(Protocol):
    """A kernel of some machine; see :class:`Kernel`."""

    def __call__(
        self,
        *arguments: Argument,
        grid: int | tuple[int, int, int],
        programmatic: bool = False,
        memory: Sequence[torch.Tensor] = (),
    ) -> None: ...


class Machine(Protocol):
    """A machine that kernels run on; ``device`` is where torch has its tensors."""

    @property
    def device(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def num_sms(self) -> int: ...
    def kernel(
        self, source: str, name: str, threads: int, shared_bytes: int, defines: dict[str, int | str]
    ) -> Launchable: ...
    def tensor_map(self, tensor: torch.Tensor, rows: int, columns: int, box: tuple[int, int]) -> ctypes.Structure:
        """``tensor`` as a matrix [rows, columns] for TMA, which reads boxes of ``box``."""
        ...


class Gpu:
    """This machine's GPU."""

    device = "cuda"

    @property
    def arch(self) -> str:
        return arch()

    @property
    def num_sms(self) -> int:
        return num_sms()

    def kernel(self, source: str, name: str, threads: int, shared_bytes: int, defines: dict[str, int | str]) -> Kernel:
        return Kernel(source, name, threads, shared_bytes, defines)

    def tensor_map(self, tensor: torch.Tensor, rows: int, columns: int, box: tuple[int, int]) -> ctypes.Structure:
        check_map(tensor, rows, columns)
        return _encoded(tensor, rows, columns, box)


GPU = Gpu()
