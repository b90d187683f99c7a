"""Computes weights on several threads: numpy releases the interpreter's lock while it computes."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from threading import Lock
from typing import Generic, TypeVar

import onnx_ir as ir
from threadpoolctl import threadpool_limits

from trtllm_lite.common.host_memory import available_host_memory
from trtllm_lite.network.tensors import Computed, extents

_T = TypeVar("_T")
_PER_CORE = 3  # several tensors of a matrix are computed together, and threads that wait for another's result are idle


def num_workers(bytes_each: int, available: int) -> int:
    """The number of threads that keep this process's cores busy, or fewer if memory is short.

    A busy core takes ``bytes_each`` of the ``available`` bytes. Results do not depend on the number.
    """
    return _PER_CORE * max(1, min(len(os.sched_getaffinity(0)), available // max(bytes_each, 1)))


def workers_of(graph: ir.Graph) -> int:
    """The number of threads to compute the weights of ``graph`` that are :class:`Computed`."""
    tensors = (value.const_value for value in graph.initializers.values())
    shapes = [(1, *extents(tensor)) for tensor in tensors if isinstance(tensor, Computed)]
    # A weight takes at most six float32 copies of itself, or three square float64 matrices of its width (GPTQ).
    most = max((3 * 8 * shape[-1] * max(shape[-1], prod(shape[:-1])) for shape in shapes), default=0)
    return num_workers(most, available_host_memory())


def in_order(tasks: Iterable[Callable[[], _T]], workers: int) -> Iterator[_T]:
    """The results of ``tasks``, in their order; at most ``workers`` of them are computed or kept ahead.

    Meanwhile numpy's BLAS has one thread per task: more threads would wait for each other, and the order of sums would
    depend on the machine.
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
    """The named results of ``compute``, computed when a thread takes the first part; other threads wait for it.

    A part is kept until it is taken. Taking it a second time computes it again.
    """

    def __init__(self, compute: Callable[[], Mapping[str, _T]]) -> None:
        self._compute, self._lock = compute, Lock()
        self._left: dict[str, _T] = {}

    def take(self, name: str) -> _T:
        """The part called ``name``."""
        with self._lock:
            if name not in self._left:
                self._left = dict(self._compute())
            return self._left.pop(name)


class Once(Generic[_T]):
    """The result of ``compute``, computed by the first thread that needs it, and kept; other threads wait for it."""

    def __init__(self, compute: Callable[[], _T]) -> None:
        self._compute, self._lock = compute, Lock()
        self._kept: list[_T] = []

    def __call__(self) -> _T:
        """The value."""
        with self._lock:
            if not self._kept:
                self._kept.append(self._compute())
            return self._kept[0]
