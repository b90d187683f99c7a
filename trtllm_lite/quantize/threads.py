"""Weights computed by several threads: numpy lets go of the interpreter while it computes."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from threading import Lock
from typing import Generic, TypeVar

import onnx_ir as ir
from threadpoolctl import threadpool_limits

from trtllm_lite.host_memory import available_host_memory
from trtllm_lite.network.tensors import Computed, extents

_T = TypeVar("_T")
_PER_CORE = 3  # several tensors of a matrix are computed at once, and threads that wait for another's compute nothing


def num_workers(bytes_each: int, available: int) -> int:
    """Threads that keep the cores of this process busy, or as many of them as there is memory for.

    A busy core takes ``bytes_each`` of the ``available`` bytes. What is computed does not depend on the number.
    """
    return _PER_CORE * max(1, min(len(os.sched_getaffinity(0)), available // max(bytes_each, 1)))


def workers_of(graph: ir.Graph) -> int:
    """Threads to compute those weights of ``graph`` that are :class:`Computed`."""
    tensors = (value.const_value for value in graph.initializers.values())
    shapes = [(1, *extents(tensor)) for tensor in tensors if isinstance(tensor, Computed)]
    # A weight takes six float32 copies of itself at most, or three square float64 matrices as wide as it is (GPTQ).
    most = max((3 * 8 * shape[-1] * max(shape[-1], prod(shape[:-1])) for shape in shapes), default=0)
    return num_workers(most, available_host_memory())


def in_order(tasks: Iterable[Callable[[], _T]], workers: int) -> Iterator[_T]:
    """The results of ``tasks``, in their order; at most ``workers`` of them are computed or kept ahead.

    Meanwhile numpy's BLAS has one thread for each of them: more would wait for each other, and the order of its sums
    would depend on the machine.
    """
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        ahead = deque[Future[_T]]()
        for task in tasks:
            ahead.append(pool.submit(task))
            if len(ahead) > workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


class Parts(Generic[_T]):
    """What ``compute`` returns by name, computed when a thread asks for the first part; the others wait for it.

    A part is kept until it is taken. One that is taken again is computed again.
    """

    def __init__(self, compute: Callable[[], Mapping[str, _T]]) -> None:
        self._compute, self._lock = compute, Lock()
        self._left: dict[str, _T] = {}

    def take(self, name: str) -> _T:
        """The part of that name."""
        with self._lock:
            if name not in self._left:
                self._left = dict(self._compute())
            return self._left.pop(name)


class Once(Generic[_T]):
    """What ``compute`` returns, computed by the first thread that asks, and kept; the others wait for it."""

    def __init__(self, compute: Callable[[], _T]) -> None:
        self._compute, self._lock = compute, Lock()
        self._kept: list[_T] = []

    def __call__(self) -> _T:
        """The value."""
        with self._lock:
            if not self._kept:
                self._kept.append(self._compute())
            return self._kept[0]
