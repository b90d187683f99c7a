"""Stands in for cuda.bindings.runtime: device memory lies on the host, and a stream works when it is synchronized."""

# ruff: noqa: N802, N815 (the names are CUDA's)

import ctypes
from collections.abc import Callable
from typing import Any

_ALIGNMENT = 256
_POISON = 0x7B  # makes large values of 16-bit floats


class FakeCuda:
    """A device with ``capacity`` bytes of memory; the functions named in ``failing`` return an error."""

    def __init__(self, capacity: int = 1 << 30) -> None:
        self.capacity = capacity
        self.failing: set[str] = set()
        self.queue: list[Callable[[], None]] = []
        self.memory: dict[int, tuple[int, Any]] = {}  # by address: size, and the buffer that holds the bytes

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[int, int]:
        assert flags == 1
        return 0, 7

    def cudaStreamDestroy(self, stream: int) -> tuple[int]:
        assert stream == 7
        return (0,)

    def cudaMalloc(self, size: int) -> tuple[int, int]:
        if sum(size for size, _ in self.memory.values()) + size > self.capacity:
            return 2, 0
        return 0, self._allocate(size)

    def cudaHostAlloc(self, size: int, flags: int) -> tuple[int, int]:
        assert flags == 1
        return 0, self._allocate(size)

    def cudaFree(self, address: int) -> tuple[int]:
        del self.memory[address]
        return (0,)

    cudaFreeHost = cudaFree

    @staticmethod
    def cudaMemcpyKind(kind: int) -> int:
        return kind

    def cudaMemcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> tuple[int]:
        assert (kind, stream) == (4, 7)
        if "cudaMemcpyAsync" in self.failing:
            return (1,)
        assert self.holds(to, size) or self.holds(source, size)
        self.queue.append(lambda: ctypes.memmove(to, source, size) and None)
        return (0,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:
        assert stream == 7
        if "cudaStreamSynchronize" in self.failing:
            return (700,)
        for operation in self.queue:
            operation()
        self.queue.clear()
        return (0,)

    @staticmethod
    def cudaGetErrorName(error: int) -> tuple[int, bytes]:
        return 0, b"cudaErrorOf%d" % error

    def holds(self, address: int, size: int) -> bool:
        """Whether ``size`` bytes from ``address`` on are allocated."""
        return any(start <= address and address + size <= start + have for start, (have, _) in self.memory.items())

    def _allocate(self, size: int) -> int:
        block = ctypes.create_string_buffer(size + _ALIGNMENT)
        address = -(-ctypes.addressof(block) // _ALIGNMENT) * _ALIGNMENT
        ctypes.memset(address, _POISON, size)
        self.memory[address] = size, block
        return address
