"""Runs the network of an engine that TensorRT compiled, on its GPU: context and generation steps, and the KV cache."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import ATTENTION, COMPILED_INPUTS, LOGITS, LOGITS_INDICES, cache_names
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.plan import NetworkInstruction, Plan
from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.interfaces import Network
from trtllm_lite.runtime.tensorrt.cuda import Cuda
from trtllm_lite.runtime.tensorrt.library import Library
from trtllm_lite.runtime.tensorrt.steps import Steps
from trtllm_lite.runtime.tensorrt.tensors import check_tensors


class TensorRtNetwork(Network):
    """Implements the network of ``_core.open_executor``.

    A cache is [rows, kv_heads, max_seq_len, head_dim] and is updated in place. Context steps and generation steps have
    an execution context each, and share a workspace; TensorRT for RTX captures generation steps as CUDA graphs,
    TensorRT itself launches kernels one by one.
    """

    def __init__(self, image: Any, plan: Plan, manifest: Manifest, num_rows: int) -> None:
        """Load ``image``, the serialized network of ``plan``, with caches of ``num_rows`` rows.

        Raises DeviceError (no GPU, or no TensorRT), EngineError (a network whose tensors differ from the manifest),
        LimitError (too little memory).
        """
        instructions = list(_instructions(plan))
        self._library, self._cuda = Library(instructions[0].library), Cuda()
        self._engine = self._library.load(image, _compiler(manifest))
        caches = manifest.kv_cache
        self._cache_shape = caches.row_shape
        self._row_bytes = caches.bytes_per_block // (2 * caches.num_layers)
        num_logits = plan.symbols["num_logits"]
        most = {"num_blocks": num_rows, "num_logits": num_logits}
        check_tensors(self._library, self._engine, manifest, most)
        self._caches = {
            names: self._cuda.allocate(num_rows * self._row_bytes, "KV cache")
            for names in cache_names(enumerate([ATTENTION] * caches.num_layers))
        }
        self._steps = [
            Steps(self._library, self._engine, self._cuda, instruction.profile, generation=program.decode_only)
            for program, instruction in zip(plan.programs, instructions, strict=True)
        ]
        self._bind(num_logits, manifest.model.vocab_size)
        workspace = self._share_workspace()
        self.memory = {
            "weights": manifest.memory.weights,
            "kv_cache": num_rows * caches.bytes_per_block,
            "workspace": workspace,
        }

    def step(
        self,
        generation: bool,
        first_row: int,
        past_lens: NDArray[np.int32],
        token_ids: NDArray[np.int32],
        logits_indices: NDArray[np.int32],
        outputs: NDArray[np.int32],
        logits: NDArray[np.float32],
    ) -> None:
        """Append tokens [rows, seq] to the sequences in cache rows from ``first_row`` on; see ``Network``."""
        steps = self._steps[int(generation)]
        positions = past_lens[:, None] + np.arange(token_ids.shape[1])
        inputs = dict(zip(COMPILED_INPUTS, (token_ids, positions, past_lens, logits_indices), strict=True))
        steps.set_shapes({name: values.shape for name, values in inputs.items()})
        places = {names: cache + first_row * self._row_bytes for names, cache in self._caches.items()}
        steps.set_caches(places, (len(past_lens), *self._cache_shape))
        for name, values in inputs.items():
            self._send(name, values)
        steps.run()
        if len(outputs):
            rows = self._host[LOGITS][: len(outputs)]
            self._cuda.copy(rows.ctypes.data, self._places[LOGITS], rows.nbytes)
        self._cuda.wait()
        if len(outputs):
            logits[outputs] = rows

    def copy_row(self, source: int, to: int) -> None:
        """Copy a row of all caches to another."""
        for cache in self._caches.values():
            self._cuda.copy(cache + to * self._row_bytes, cache + source * self._row_bytes, self._row_bytes)
        self._cuda.wait()

    def save_row(self, row: int, out: NDArray[np.uint8]) -> None:
        """Copy a row of all caches to the host."""
        for host, device in self._pieces(row, out):
            self._cuda.copy(host, device, self._row_bytes)
        self._cuda.wait()

    def load_row(self, row: int, data: NDArray[np.uint8]) -> None:
        """Copy the result of ``save_row`` to a row of all caches."""
        for host, device in self._pieces(row, data):
            self._cuda.copy(device, host, self._row_bytes)
        self._cuda.wait()

    def _pieces(self, row: int, block: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
        """The addresses on the host and on the device of each cache's part of a block."""
        for number, cache in enumerate(self._caches.values()):
            yield block.ctypes.data + number * self._row_bytes, cache + row * self._row_bytes

    def _send(self, name: str, values: NDArray[Any]) -> None:
        host = self._host[name]
        host[: values.size] = values.ravel()
        self._cuda.copy(self._places[name], host.ctypes.data, values.size * host.itemsize)

    def _bind(self, num_logits: int, vocab_size: int) -> None:
        """Give the inputs and logits memory for their largest extents."""
        sizes = {name: max(steps.most(name) for steps in self._steps) for name in COMPILED_INPUTS}
        self._host = {name: self._cuda.allocate_host((size,), np.int64) for name, size in sizes.items()}
        rows = max(sizes[LOGITS_INDICES], num_logits)
        self._host[LOGITS] = self._cuda.allocate_host((rows, vocab_size), np.float32)
        self._places = {name: self._cuda.allocate(host.nbytes, "step's inputs") for name, host in self._host.items()}
        for steps in self._steps:
            steps.bind(self._places)

    def _share_workspace(self) -> int:
        """Allocate the workspace that steps of both kinds share in turns; returns its bytes."""
        num_bytes = max(steps.workspace_bytes for steps in self._steps)
        address = self._cuda.allocate(num_bytes, "workspace")
        for steps in self._steps:
            steps.context.set_device_memory(address, num_bytes)
        return num_bytes


def open_network(engine: Any, manifest: Manifest, num_rows: int) -> TensorRtNetwork:
    """Open the network of ``engine``, a ``_core.Engine`` of TensorRT; raises the errors of :class:`TensorRtNetwork`."""
    plan = Plan.from_json(engine.plan)
    key = next(_instructions(plan)).network
    return TensorRtNetwork(engine.network(key), plan, manifest, num_rows)


def _instructions(plan: Plan) -> Iterator[NetworkInstruction]:
    for program in plan.programs:
        (instruction,) = program.instructions
        if not isinstance(instruction, NetworkInstruction):
            raise EngineError(f"the program {program.name} is not a network: build the engine again")
        yield instruction


def _compiler(manifest: Manifest) -> str:
    """The compiler that built the engine, as its tactics name it."""
    return next((tactic.choice for tactic in manifest.tactics if tactic.site == "all"), "another version")
