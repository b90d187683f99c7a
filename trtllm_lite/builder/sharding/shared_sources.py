"""Shares the tensors that ranks take their parts of, so that each is evaluated once for all ranks."""

from threading import Lock

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.tensors import extents, lazy


class SharedSources:
    """The tensors that ranks take their parts of; evaluated for the first rank that reads them, and kept."""

    def __init__(self, num_readers: int) -> None:
        """Each tensor is read by ``num_readers`` ranks."""
        self._num_readers = num_readers
        self._shared: dict[int, ir.TensorProtocol] = {}
        self._alive: list[ir.TensorProtocol] = []  # keeps tensors alive, so that no other tensor gets their ids

    def of(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """Return ``tensor`` in the form that the ranks share."""
        if id(tensor) not in self._shared:
            self._alive.append(tensor)
            kept = _Kept(tensor, self._num_readers)
            self._shared[id(tensor)] = lazy(kept.read, tensor.dtype, extents(tensor), [tensor])
        return self._shared[id(tensor)]


class _Kept:
    """The elements of a tensor, kept until they have been read ``num_readers`` times."""

    def __init__(self, tensor: ir.TensorProtocol, num_readers: int) -> None:
        self._tensor, self._num_readers, self._lock = tensor, num_readers, Lock()
        self._elements: np.ndarray | None = None
        self._left = num_readers

    def read(self) -> np.ndarray:
        with self._lock:
            elements = self._tensor.numpy() if self._elements is None else self._elements
            self._left -= 1
            self._elements = elements if self._left else None
            self._left = self._left or self._num_readers
            return elements
