"""Manages memory of a GPU and a stream of copies, by CUDA's runtime (cuda-bindings)."""

import ctypes
import weakref
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import DeviceError, LimitError

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_NON_BLOCKING = 1  # cudaStreamNonBlocking
_DEFAULT = 4  # cudaMemcpyDefault: the direction follows from the addresses
_PORTABLE = 1  # cudaHostAllocPortable


class Cuda:
    """A stream of the first GPU. Addresses are numbers; memory lasts as long as this object."""

    def __init__(self) -> None:
        """Raises DeviceError if there is no GPU, or cuda-bindings is not installed."""
        try:
            self._cuda = import_module("cuda.bindings.runtime")
        except ImportError as error:
            raise DeviceError(
                f"engines of TensorRT run with cuda-bindings, which does not load ({error}): "
                "pip install 'trtllm_lite[tensorrt-rtx]'"
            ) from error
        self._device: list[int] = []
        self._host: list[int] = []
        self._stream = self._call("cudaStreamCreateWithFlags", _NON_BLOCKING)
        release = weakref.finalize(self, _release, self._cuda, self._stream, self._device, self._host)
        release.atexit = False  # memory is freed when the process ends

    @property
    def stream(self) -> int:
        """The stream's handle."""
        return int(self._stream)

    def allocate(self, num_bytes: int, what: str) -> int:
        """The address of device memory, aligned to at least 256 bytes. Raises LimitError that names ``what``."""
        error, address = self._cuda.cudaMalloc(max(num_bytes, 1))
        if int(error) == _OUT_OF_MEMORY:
            raise LimitError(
                f"the GPU has not enough memory for the {what} of {num_bytes:,} bytes: free some, or build the engine "
                "with a smaller --max_batch_size, --max_seq_len or --max_num_tokens"
            )
        self._check("cudaMalloc", error)
        self._device.append(int(address))
        return int(address)

    def allocate_host(self, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
        """An array in page-locked memory, from which copies are asynchronous. Raises DeviceError."""
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        address = int(self._call("cudaHostAlloc", num_bytes, _PORTABLE))
        self._host.append(address)
        memory = (ctypes.c_uint8 * num_bytes).from_address(address)
        return np.frombuffer(memoryview(memory), dtype).reshape(shape)

    def copy(self, to: int, source: int, num_bytes: int) -> None:
        """Queue a copy between addresses of host or device. Raises DeviceError."""
        self._call("cudaMemcpyAsync", to, source, num_bytes, self._cuda.cudaMemcpyKind(_DEFAULT), self._stream)

    def wait(self) -> None:
        """Wait for all queued work. Raises DeviceError, also for earlier failures."""
        self._call("cudaStreamSynchronize", self._stream)

    def _call(self, function: str, *arguments: Any) -> Any:
        error, *values = getattr(self._cuda, function)(*arguments)
        self._check(function, error)
        return values[0] if values else None

    def _check(self, function: str, error: Any) -> None:
        if int(error) != 0:
            _, name = self._cuda.cudaGetErrorName(error)
            raise DeviceError(f"CUDA's {function} failed: {name.decode()}")


def _release(cuda: Any, stream: Any, device: list[int], host: list[int]) -> None:
    for address in device:
        cuda.cudaFree(address)
    for address in host:
        cuda.cudaFreeHost(address)
    cuda.cudaStreamDestroy(stream)
