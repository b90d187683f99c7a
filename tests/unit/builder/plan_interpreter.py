"""Executes an engine file by its plan: numpy references over one real arena, laid out like the runtime does."""

import json
from pathlib import Path

import numpy as np

from trtllm_lite.engine.plan import CallInstruction, Plan, PlanTensor
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.network.dtypes import NUMPY
from trtllm_lite.plugins.packing import packed_shape, unpack
from trtllm_lite.plugins.schema import all_schemas

_POISON = 0xFF  # a float32 of these bytes is NaN


class PlanInterpreter:
    """One engine with its arena and caches; weights are read from the plan's offsets."""

    def __init__(self, path: Path, num_blocks: int) -> None:
        engine = read_engine(path)
        self.plan: Plan = engine.plan
        self.arena = np.full(self.plan.arena_bytes, _POISON, np.uint8)
        data = engine.path.read_bytes()
        self.data = data[8 + int.from_bytes(data[:8], "little") :]
        symbols = self.plan.symbols | {"num_blocks": num_blocks}
        self.caches = {
            index: np.zeros([symbols.get(dim, dim) for dim in tensor.shape], np.float32)
            for index, tensor in enumerate(self.plan.tensors)
            if tensor.kind == "cache"
        }

    def step(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Logits of one step; ``inputs`` are the step inputs by name."""
        extents = {
            "num_tokens": len(inputs["token_ids"]),
            "num_seqs": len(inputs["past_lens"]),
            "num_seqs_plus_1": len(inputs["cu_seqlens"]),
            "num_logits": len(inputs["logits_indices"]),
            "num_tables": inputs["block_tables"].shape[0],
            "max_blocks_per_seq": inputs["block_tables"].shape[1],
        }
        for call in calls(self.plan):
            schema = all_schemas()[call.op]
            reference = schema.part("reference").reference
            given = [call.operands.get(argument.name) for argument in schema.inputs]
            operands = [None if index is None else self._read(index, inputs, extents) for index in given]
            results = reference(operands, call.attributes)
            for argument, result in zip(schema.outputs, results, strict=False):
                index = call.operands.get(argument.alias or argument.name)
                if index is not None:
                    self._write(index, result, extents)
        return self._read(self.plan.outputs["logits"], inputs, extents).copy()

    def _read(self, index: int, inputs: dict[str, np.ndarray], extents: dict[str, int]) -> np.ndarray:
        tensor = self.plan.tensors[index]
        match tensor.kind:
            case "input":
                return inputs[tensor.name]
            case "cache":
                return self.caches[index]
            case "weight":
                return self._weight(tensor)
            case _:
                return self._view(tensor, extents)

    def _write(self, index: int, value: np.ndarray, extents: dict[str, int]) -> None:
        if index in self.caches:
            self.caches[index] = value
        else:
            self._view(self.plan.tensors[index], extents)[...] = value

    def _view(self, tensor: PlanTensor, extents: dict[str, int]) -> np.ndarray:
        shape = [extents.get(dim, dim) for dim in tensor.shape]
        bytes_ = self.arena[tensor.offset :][: int(np.prod(shape)) * 4]
        return bytes_.view(np.float32).reshape(shape)

    def _weight(self, tensor: PlanTensor) -> np.ndarray:
        dtype = NUMPY[tensor.dtype]
        shape = packed_shape(tensor.shape, tensor.layout, dtype)
        items = np.dtype(np.uint8) if tensor.dtype in ("int4", "uint4") else dtype
        stored = np.frombuffer(self.data, items, int(np.prod(shape)), tensor.offset).reshape(shape)
        return unpack(stored, tensor.layout, tensor.shape, dtype)


def calls(plan: Plan) -> list[CallInstruction]:
    """The calls of a CPU plan's single program."""
    (program,) = plan.programs
    return [call for call in program.instructions if isinstance(call, CallInstruction)]


def header_of(path: Path) -> dict:
    """The JSON header of an engine file."""
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
