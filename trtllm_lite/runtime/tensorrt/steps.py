"""Runs steps of one kind: an execution context of TensorRT, bound to a profile and to memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trtllm_lite.common.vocabulary import COMPILED_INPUTS, LOGITS_INDICES, CacheNames
from trtllm_lite.errors import DeviceError, LimitError
from trtllm_lite.runtime.tensorrt.cuda import Cuda
from trtllm_lite.runtime.tensorrt.library import Library


class Steps:
    """Runs either context steps or generation steps."""

    def __init__(self, library: Library, engine: Any, cuda: Cuda, profile: int, *, generation: bool) -> None:
        trt = library.module
        self._library = library
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        if generation and hasattr(trt, "CudaGraphStrategy"):  # only TensorRT for RTX has it
            config.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
        self.context = engine.create_execution_context(config)
        if self.context is None or not self.context.set_optimization_profile_async(profile, cuda.stream):
            raise DeviceError(f"{library.name} made no context for the engine{library.complaints()}")
        self._cuda = cuda  # assigned after the context, so that the context is released before the memory that it uses
        self.workspace_bytes = int(engine.get_device_memory_size_for_profile_v2(profile))
        self._bounds = {name: _profile_shapes(engine, name, profile) for name in COMPILED_INPUTS}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, int] = {}

    def most(self, name: str) -> int:
        """The maximum number of elements of the input ``name``."""
        return int(np.prod(self._bounds[name][2]))

    def bind(self, places: dict[str, int]) -> None:
        """Bind inputs and logits to their addresses."""
        for name, address in places.items():
            self._expect(self.context.set_tensor_address(name, address), f"the address of {name}")

    def set_shapes(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Set the shapes of inputs. Raises LimitError for a shape that the network was not compiled for."""
        for name, shape in shapes.items():
            least, _, most = self._bounds[name]
            if not all(low <= found <= high for low, found, high in zip(least, shape, most, strict=True)):
                more = " and with --gather_context_logits" if name == LOGITS_INDICES else ""
                raise LimitError(
                    f"a step has {name} of {list(shape)}, and the network was compiled for {list(least)} to "
                    f"{list(most)}: ask for less, or build the engine with larger limits{more}"
                )
            self._set_shape(name, shape)

    def set_caches(self, places: dict[CacheNames, int], shape: tuple[int, ...]) -> None:
        """Let the network read and update caches of ``shape`` at ``places``."""
        for names, address in places.items():
            self._set_shape(names.past, shape)
            if self._places.get(names.past) == address:
                continue
            for tensor in (names.past, names.present):
                self._expect(self.context.set_tensor_address(tensor, address), f"the address of {tensor}")
            self._places[names.past] = address

    def run(self) -> None:
        """Queue the step. Raises DeviceError."""
        self._expect(self.context.execute_async_v3(self._cuda.stream), "the step")

    def _set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if self._shapes.get(name) != shape:
            self._expect(self.context.set_input_shape(name, shape), f"the shape {list(shape)} of {name}")
            self._shapes[name] = shape

    def _expect(self, done: bool, what: str) -> None:
        if not done:
            raise DeviceError(f"{self._library.name} refused {what}{self._library.complaints()}")


def _profile_shapes(engine: Any, name: str, profile: int) -> Sequence[tuple[int, ...]]:
    return [tuple(shape) for shape in engine.get_tensor_profile_shape(name, profile)]
