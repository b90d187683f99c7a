"""The buffers that all programs of a GPU engine share: weights, caches, step inputs and state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.cache_groups import BlockLayout, as_stored, block_layout
from trtllm_lite.builder.cuda.limits import symbols
from trtllm_lite.builder.cuda.ops import known_dims, static_dims
from trtllm_lite.builder.graph import cache_kind, weight_tensor
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.common.vocabulary import FLOAT32, STATE, STEP_INPUTS, UINT8
from trtllm_lite.engine.writer import Weight
from trtllm_lite.errors import BuildError
from trtllm_lite.network.dtypes import DTYPE_NAMES, NUMPY, ONNX
from trtllm_lite.network.tensors import Computed, extents
from trtllm_lite.plugins.cuda.weight_form import BLOCK_FORMS, BLOCK_SIZES, WeightForm, has_blocks, weight_form
from trtllm_lite.plugins.launch import Buffer, WeightBuffers
from trtllm_lite.plugins.low_rank.cuda import AdapterMatrices
from trtllm_lite.plugins.packing import MMA_K, NUMBER_ROWS, pack, packed_shape

_COMPUTED = ("float16", "bfloat16")  # types that GPU engines compute in
_E4M3 = "float8_e4m3fn"
_E4M3_NAN = 0x7F  # bits of NaN without the sign

Check: TypeAlias = Callable[[np.ndarray], None]


@dataclass(frozen=True)
class _Source:
    """Source of a stored weight: the elements of the network's weight ``name``, transformed by ``convert``."""

    name: str
    convert: Callable[[np.ndarray], np.ndarray]

    def weight(self, tensor: ir.TensorProtocol, buffer: Buffer) -> Weight:
        """Return the weight stored as ``buffer``, with the elements of ``tensor``."""

        def load() -> memoryview:
            return np.ascontiguousarray(self.convert(tensor.numpy())).reshape(-1).view("u1").data

        physical = packed_shape(extents(tensor), buffer.layout, NUMPY[buffer.dtype])
        return Weight(buffer.name, buffer.dtype, physical, load, isinstance(tensor, Computed))


@dataclass(frozen=True)
class Bias:
    """A bias in float32, as this project's kernels add it, and rounded to the engine's type; stored only if used."""

    vector: Callable[[], Buffer]
    rounded: Callable[[], Buffer]

    def like(self, y: Buffer) -> Buffer:
        """Return the bias in the type of ``y``, as cuBLASLt adds it."""
        return self.vector() if y.dtype == "float32" else self.rounded()


class Operands:
    """Buffers by name and by value of the fused graph; asking for a buffer puts it into the plan.

    ``dtype`` is the type of activations and matrices, and of caches of tokens unless the network rounds what they hold.
    Raises BuildError for a weight of another type.
    """

    def __init__(self, dtype: str, limits: BuildLimits) -> None:
        if dtype not in _COMPUTED:
            raise BuildError(
                f"the checkpoint stores its matrices as {dtype}, and GPU engines compute in {' or '.join(_COMPUTED)}: "
                "convert again with --dtype bfloat16"
            )
        self.dtype = dtype
        tokens = limits.tokens_per_block
        groups = as_stored(limits.cache_groups, tokens, self._cache_dtype, limits.groups_of_stages)
        self.block: BlockLayout = block_layout(groups, tokens)
        self.limits = replace(limits, cache_groups=groups)
        self.symbols = symbols(self.limits)
        self.weights: dict[Buffer, Weight] = {}
        self.caches: dict[str, Buffer] = {}
        self.adapted: dict[int, AdapterMatrices] = {}  # by the number of a product's first projection
        self.outputs: dict[str, Buffer] = {}
        self.states: dict[str, Buffer] = {}
        self.collectives: list[str] = []
        self.states_of_ranks: list[Buffer] = []  # those of ``states`` that ranks share, in the order of their offsets
        self.received: dict[ir.Value, Buffer] = {}
        self.taken: dict[ir.Value, Buffer] = {}  # step inputs that are rows
        self._sources: dict[Buffer, _Source] = {}  # the sources of ``weights``
        self._by_value: dict[ir.Value, Buffer] = {}
        self._converted: dict[ir.Value, Buffer] = {}
        self.inputs = {buffer.name: buffer for buffer in _step_inputs(self.limits, self.symbols)}

    def matrix(self, value: ir.Value) -> Buffer:
        """Return a weight matrix of the engine's type, row-major."""
        buffer = self._weight(value)
        if buffer.dtype != self.dtype:
            raise BuildError(
                f"the weight {value.name} is {buffer.dtype}, expected {self.dtype} like the rest of the model: convert "
                f"again with --dtype {self.dtype}"
            )
        return buffer

    def weight(self, operands: Mapping[str, ir.Value], rows: str | None) -> WeightBuffers:
        """The matrix of a product from its ``operands``; ``rows`` is the type of 8-bit rows, None for 16-bit rows."""
        if "weight_scale" not in operands:
            return WeightBuffers(self.matrix(operands["weight"]))
        _check_scales(operands, rows)
        weight, scale = operands["weight"], operands["weight_scale"]
        form = _form_of(weight, scale, rows)
        form = form.ordered if self.limits.deterministic else form
        values = self._weight(weight, form.layout, partial(_check_elements, weight))
        if not form.in_blocks:
            return WeightBuffers(values, self._stored_as(scale, "float32"), rows=rows)
        offset = self._weight(operands["weight_offset"], "rows8") if "weight_offset" in operands else None
        return WeightBuffers(values, self._weight(scale, "rows8", partial(_check_numbers, scale, form)), offset)

    def vector(self, value: ir.Value) -> Buffer:
        """Return a float32 weight."""
        buffer = self._weight(value)
        if buffer.dtype != "float32":
            raise BuildError(f"the vector {value.name} is {buffer.dtype}, expected float32: convert the model again")
        return buffer

    def indices(self, value: ir.Value, below: int) -> Buffer:
        """Return a weight of int32 indices from 0 to ``below`` - 1; they are checked when the weight is written."""
        if value not in self._by_value:

            def checked(indices: np.ndarray) -> np.ndarray:
                if np.any((indices < 0) | (indices >= below)):
                    raise BuildError(f"expected indices from 0 to {below - 1} in {value.name}: convert the model again")
                return indices

            self._by_value[value] = self._store(value, str(value.name), "int32", checked)
        return self._by_value[value]

    def bias(self, value: ir.Value) -> Bias:
        """Return a vector that is added to a product's rows."""
        return Bias(partial(self.vector, value), partial(self._stored_as, value, self.dtype))

    def output(self, buffer: Buffer) -> Buffer:
        """Return the one output buffer of that name, which the executor reads and no other value overwrites."""
        return self.outputs.setdefault(buffer.name, buffer)

    def state(self, value: ir.Value) -> Buffer:
        """Return memory that is kept between steps."""
        return self.states.setdefault(str(value.name), buffer_of(value, "state"))

    def collective(self, name: str) -> int:
        """Return the number of the collective ``name``, which is the name of its operator."""
        if name not in self.collectives:
            self.collectives.append(name)
        return self.collectives.index(name)

    def state_of_ranks(self, value: ir.Value) -> None:
        """Keep a state, used or not, so that it is at the same place in every stage of a pipeline."""
        self.states_of_ranks.append(self.state(value))

    def take_rows(self, value: ir.Value) -> None:
        """Add the step input ``value``, rows of activations or of bytes."""
        dtype = UINT8 if value.dtype == ir.DataType.UINT8 else self.dtype
        buffer = Buffer(str(value.name), dtype, known_dims(value), "input")
        self.inputs[buffer.name] = self.taken[value] = buffer

    def receive(self, value: ir.Value) -> None:
        """Make room for the rows ``value`` that another stage computes."""
        self.received[value] = Buffer(str(value.name), self.dtype, known_dims(value))

    def cache(self, value: ir.Value, *shape: int) -> Buffer:
        """Return the paged cache for the graph's input ``value``, in blocks of the shape of ``value``."""
        name = str(value.name)
        if name not in self.caches:
            assert value.dtype is not None
            in_graph = DTYPE_NAMES[value.dtype]
            dtype = in_graph if cache_kind(value) == STATE else self._cache_dtype(in_graph)
            self.caches[name] = Buffer(name, dtype, ("num_blocks", *shape), "cache")
        return self.caches[name]

    def _cache_dtype(self, dtype: str) -> str:
        """How keys, values, latents and features are stored that have the type ``dtype`` in the graph."""
        return self.dtype if dtype == FLOAT32 else dtype

    def adapters(self, first_part: int, in_features: int, widths: tuple[int, ...], max_rank: int) -> AdapterMatrices:
        """The adapter slots of a product whose projections, numbered from ``first_part``, have ``widths`` outputs."""
        if first_part not in self.adapted:

            def slots(name: str, dtype: str, *shape: int) -> Buffer:
                return Buffer(f"adapter_{name}.{first_part}", dtype, ("num_loras", *shape), "adapter")

            a = slots("a", self.dtype, len(widths) * max_rank, in_features)
            b = slots("b", self.dtype, sum(widths), max_rank)
            self.adapted[first_part] = AdapterMatrices(a, b, slots("ranks", "int32", len(widths)), widths)
        return self.adapted[first_part]

    def weights_of(self, graph: ir.Graph) -> tuple[Weight, ...]:
        """Return the ``weights`` of another rank, whose ``graph`` has weights of the same names and shapes."""
        found = []
        for buffer, source in self._sources.items():
            tensor = weight_tensor(graph.initializers[source.name])
            assert tensor is not None
            assert extents(tensor) == buffer.shape
            found.append(source.weight(tensor, buffer))
        return tuple(found)

    def _weight(self, value: ir.Value, layout: str = "row_major", check: Check | None = None) -> Buffer:
        """Return a weight in ``layout``; ``check`` looks at the elements when they are written."""

        def packed(elements: np.ndarray) -> np.ndarray:
            if check is not None:
                check(elements)
            return pack(elements, layout)

        if value not in self._by_value:
            tensor = weight_tensor(value)
            if tensor is None:
                raise BuildError(f"expected {value.name} to be a weight, but the network computes it")
            name, dtype = str(value.name), DTYPE_NAMES[tensor.dtype]
            self._by_value[value] = self._store(value, name, dtype, packed, layout)
        return self._by_value[value]

    def _stored_as(self, value: ir.Value, dtype: str) -> Buffer:
        """Return a vector of floating-point numbers as ``dtype``; the original is stored as well if it is read."""
        if value.dtype == ONNX[dtype]:
            return self._weight(value)
        if value not in self._converted:
            name = f"{dtype}.{value.name}"
            self._converted[value] = self._store(value, name, dtype, lambda numbers: numbers.astype(NUMPY[dtype]))
        return self._converted[value]

    def _store(
        self,
        value: ir.Value,
        name: str,
        dtype: str,
        convert: Callable[[np.ndarray], np.ndarray],
        layout: str = "row_major",
    ) -> Buffer:
        """Store what ``convert`` makes of the weight ``value``; return its buffer, in the shape of ``value``."""
        tensor = weight_tensor(value)
        assert tensor is not None
        buffer = Buffer(name, dtype, extents(tensor), "weight", layout)
        self._sources[buffer] = _Source(str(value.name), convert)
        self.weights[buffer] = self._sources[buffer].weight(tensor, buffer)
        return buffer


def _check_scales(operands: Mapping[str, ir.Value], rows: str | None) -> None:
    """Raise BuildError unless the kernels take the weight with its scales."""
    weight, scale = operands["weight"], operands["weight_scale"]
    assert weight.dtype is not None
    *_, out_features, in_features = static_dims(weight)
    blocks = static_dims(scale)[-1]
    per_row = blocks == 1 and "weight_offset" not in operands
    if rows is not None and weight.dtype == ONNX[rows] and per_row:
        return
    form = _form_of(weight, scale, rows)
    if weight.dtype == ONNX["int8"] and per_row:
        problem = "" if in_features % MMA_K == 0 else f"expected rows of a multiple of {MMA_K} elements"
    elif form.in_blocks:
        depth, sizes = form.depth, ", ".join(map(str, BLOCK_SIZES))
        known = in_features // blocks in BLOCK_SIZES
        problem = "" if known else f"expected groups of {sizes}: pass another --group_size"
        if in_features % depth or out_features % NUMBER_ROWS:
            problem = f"expected rows of a multiple of {depth} elements, and a multiple of {NUMBER_ROWS} rows"
    else:
        problem = (
            "expected a scale for each row where activations are rounded, too: convert with --dequantize, and build "
            "with --qformat fp8_rowwise or int8_sq"
        )
    if problem:
        raise BuildError(
            f"the GPU kernels do not multiply the weight {weight.name} of {DTYPE_NAMES[weight.dtype]}, whose "
            f"{in_features} elements a row have {blocks} scales: {problem}"
        )


def _form_of(weight: ir.Value, scale: ir.Value, rows: str | None) -> WeightForm:
    assert weight.dtype is not None
    dtype = DTYPE_NAMES[weight.dtype]
    return BLOCK_FORMS[dtype] if has_blocks(dtype, rows, static_dims(scale)[-1]) else weight_form(dtype, rows)


def _check_elements(weight: ir.Value, elements: np.ndarray) -> None:
    """Raise BuildError if a weight has a NaN, which dequantizing kernels do not handle."""
    if elements.dtype == NUMPY[_E4M3] and np.any(elements.view(np.uint8) & _E4M3_NAN == _E4M3_NAN):
        raise BuildError(
            f"the weight {weight.name} of {_E4M3} has elements that are not numbers (NaN): convert a checkpoint that "
            "has none"
        )


def _check_numbers(scale: ir.Value, form: WeightForm, numbers: np.ndarray) -> None:
    """Raise BuildError if scales of blocks leave the range that kernels multiply with."""
    largest = float(np.abs(numbers.astype(np.float32)).max(initial=0.0))
    if not largest <= form.largest_scale:
        raise BuildError(
            f"the scales {scale.name} of a weight of {form.weight_bits} bits reach {largest:g}, and GPU kernels "
            f"multiply such weights with scales up to {form.largest_scale:g}: convert with --dequantize"
        )


def buffer_of(value: ir.Value, kind: str = "arena") -> Buffer:
    """Return a new buffer with the name, dtype and shape of ``value``."""
    assert value.dtype is not None
    return Buffer(str(value.name), DTYPE_NAMES[value.dtype], known_dims(value), kind)


def _step_inputs(limits: BuildLimits, bounds: Mapping[str, int]) -> list[Buffer]:
    """Return the step inputs of integers whose symbols the plan has."""
    # The row stride of block tables is the maximum number of blocks per sequence, a constant in kernels' arguments.
    fixed = {"max_blocks_per_seq": limits.max_blocks_per_seq}
    given = [one for one in STEP_INPUTS if bounds.keys() >= set(one.shape) and not one.rows]
    shapes = {one.name: tuple(fixed.get(extent, extent) for extent in one.shape) for one in given}
    return [Buffer(name, "int32", shape, "input") for name, shape in shapes.items()]
