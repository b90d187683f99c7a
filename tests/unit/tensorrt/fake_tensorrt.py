"""Stands in for TensorRT's runtime: onnxruntime runs the network that TensorRT gets, on the memory at given addresses.

The fake compiler puts that network and the extents of its profiles into the engine; the fake runtime checks in every
call what TensorRT requires: shapes within the profile, addresses of allocated memory, caches updated in place.
"""

import ctypes
import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from tests.unit.tensorrt.fake_cuda import FakeCuda
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.tensorrt.compile import Compiled
from trtllm_lite.builder.tensorrt.request import profiles_of
from trtllm_lite.network.graph import IR_VERSION

VERSION = "1.7.1.0"
_TYPES = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(int64)": np.int64}
_WORKSPACE = (4096, 1024)


def fake_image(graph: ir.Graph, limits: BuildLimits) -> Compiled:
    """What a compiler makes of ``graph``: a line of JSON, and the network."""
    proto = ir.to_proto(ir.Model(graph, ir_version=IR_VERSION))
    profiles = [profile.shapes(graph) for profile in profiles_of(limits)]
    image = json.dumps(profiles).encode() + b"\n" + proto.SerializeToString()
    return Compiled(memoryview(image), max(_WORKSPACE), ())


class FakeTensorRt(SimpleNamespace):
    """The module ``tensorrt_rtx``, on the device ``cuda``. ``contexts`` lists the contexts that were made.

    ``told`` replaces what methods of engines return, by method and argument.
    """

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__(
            __version__=VERSION,
            float16="float16",
            bfloat16="bfloat16",
            float32="float32",
            int64="int64",
            CudaGraphStrategy=SimpleNamespace(DISABLED="disabled", WHOLE_GRAPH_CAPTURE="whole"),
            ExecutionContextAllocationStrategy=SimpleNamespace(STATIC="static", USER_MANAGED="user"),
            ILogger=type("ILogger", (), {}),
            contexts=[],
            refuses=set(),
            told={},
        )
        self.cuda = cuda
        self.Runtime = partial(FakeRuntime, self)


class FakeRuntime:
    def __init__(self, trt: FakeTensorRt, logger: Any) -> None:
        self.trt, self.logger = trt, logger

    def deserialize_cuda_engine(self, image: Any) -> "FakeEngine | None":
        if "engine" in self.trt.refuses:
            self.logger.log(SimpleNamespace(name="INFO"), "Loaded engine size: 1 MiB")
            self.logger.log(SimpleNamespace(name="ERROR"), "The engine plan file is not\ncompatible")
            return None
        profiles, _, network = bytes(image).partition(b"\n")
        return FakeEngine(self.trt, self.logger, json.loads(profiles), network)


class FakeEngine:
    def __init__(self, trt: FakeTensorRt, logger: Any, profiles: list[dict[str, Any]], network: bytes) -> None:
        self.trt, self.logger, self.profiles = trt, logger, profiles
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
        graph = onnx.load_from_string(network).graph
        self.outputs = [value.name for value in graph.output]
        self.types = {value.name: _TYPES[value.type] for value in self.session.get_inputs()}
        self.tensors = {value.name: value.type.tensor_type for value in (*graph.input, *graph.output)}
        self.aliases = {
            node.output[0]: node.input[0]
            for node in graph.node
            if node.op_type == "TensorScatter" and {node.output[0], node.input[0]} <= self.tensors.keys()
        }

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        return self.trt.told.get(("get_tensor_name", index), list(self.tensors)[index])

    def create_runtime_config(self) -> Any:
        config = SimpleNamespace(cuda_graph_strategy="disabled", strategy="static")
        config.set_execution_context_allocation_strategy = lambda strategy: setattr(config, "strategy", strategy)
        return config

    def create_execution_context(self, config: Any) -> "FakeContext | None":
        if "context" in self.trt.refuses:
            return None
        self.trt.contexts.append(FakeContext(self, config))
        return self.trt.contexts[-1]

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[list[int]]:
        return self.profiles[profile][name]

    def get_tensor_dtype(self, name: str) -> str:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(self.tensors[name].elem_type).name
        return self.trt.told.get(("get_tensor_dtype", name), dtype)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        shape = tuple(-1 if dim.dim_param else dim.dim_value for dim in self.tensors[name].shape.dim)
        return self.trt.told.get(("get_tensor_shape", name), shape)

    def get_device_memory_size_for_profile_v2(self, profile: int) -> int:
        return _WORKSPACE[profile]

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self.trt.told.get(("get_aliased_input_tensor", name), self.aliases.get(name))


class FakeContext:
    def __init__(self, engine: FakeEngine, config: Any) -> None:
        self.engine, self.config = engine, config
        self.profile: int | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.places: dict[str, int] = {}
        self.workspace = (0, 0)
        self.steps: list[dict[str, tuple[int, ...]]] = []

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return stream == 7

    def set_device_memory(self, address: int, size: int) -> None:
        assert self.config.strategy == "user"
        assert self.engine.trt.cuda.holds(address, size)
        self.workspace = (address, size)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self.profile is not None
        least, _, most = self.engine.profiles[self.profile][name]
        self.shapes[name] = shape
        return len(shape) == len(least) and all(
            low <= extent <= high for low, extent, high in zip(least, shape, most, strict=True)
        )

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.places[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        trt = self.engine.trt
        if "step" in trt.refuses:
            self.engine.logger.log(SimpleNamespace(name="INTERNAL_ERROR"), "no kernel image")
            return False
        assert stream == 7
        assert self.workspace[1] >= _WORKSPACE[self.profile or 0]
        assert set(self.shapes) == set(self.engine.types)
        assert set(self.places) == {*self.engine.types, *self.engine.outputs}
        for output in self.engine.outputs:
            cache = self.engine.get_aliased_input_tensor(output)
            assert cache is None or self.places[output] == self.places[cache]
        self.steps.append(dict(self.shapes))
        shapes, places = dict(self.shapes), dict(self.places)
        trt.cuda.queue.append(lambda: self._run(shapes, places))
        return True

    def _run(self, shapes: dict[str, tuple[int, ...]], places: dict[str, int]) -> None:
        feed = {name: self._at(places[name], shape, self.engine.types[name]).copy() for name, shape in shapes.items()}
        for name, values in zip(self.engine.outputs, self.engine.session.run(self.engine.outputs, feed), strict=True):
            self._at(places[name], values.shape, values.dtype)[...] = values

    def _at(self, address: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert self.engine.trt.cuda.holds(address, size)
        memory = (ctypes.c_uint8 * size).from_address(address)
        return np.frombuffer(memory, dtype).reshape(shape)
