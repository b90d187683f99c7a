"""Makes the nodes that the layers of a network share: step inputs, rotary tables, and decoders' masks and KV caches.

A cache is float32 [batch, kv_heads, max_seq, head_dim]; row b holds ``past_lens[b]`` tokens. TensorScatter writes new
tokens after them, and Attention with ``nonpad_kv_seqlen`` aligns its causal mask with the end. Short rows are padded at
the right: the values of pad tokens are garbage that no real token attends to, and the next step overwrites them.
Position ids are past_lens[b] + 0, 1, …, also for pad tokens. A recurrent layer keeps a state instead, which pad tokens
would change: all rows of such a network's batch are equally long.
"""

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from trtllm_lite.common.vocabulary import ATTENTION, LAYER_CACHES
from trtllm_lite.network.blocks import Rounding
from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.rope import Rope

# The rounding of keys and of values that a layer appends to its caches; each has one scale.
CacheRounding = tuple[Rounding, Rounding]
NO_ROUNDING: Mapping[int, CacheRounding] = {}

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64


class NetworkContext:
    """Declares the inputs that all networks have, and makes rotary tables once, when a layer first asks for them."""

    def __init__(self, graph: GraphBuilder) -> None:
        self.graph = graph
        self.input_ids = declare("input_ids", _INT64, ("batch", "seq"))
        self.position_ids = declare("position_ids", _INT64, ("batch", "seq"))
        self._made: dict[str, ir.Value] = {}
        self._tables: dict[Rope, tuple[ir.Value, ir.Value]] = {}

    def once(self, name: str, make: Callable[[], ir.Value]) -> ir.Value:
        """The result of ``make`` for the first layer that asked for ``name``; its nodes do not depend on a layer."""
        if name not in self._made:
            with self.graph.shared():
                self._made[name] = make()
        return self._made[name]

    def rotary_table(self, rope: Rope) -> tuple[ir.Value, ir.Value]:
        """Cosines and sines of every position's angles, float32 [batch, seq, rotary_dim/2]."""
        if rope not in self._tables:
            name = f"rope_{len(self._tables) + 1}" if self._tables else "rope"
            with self.graph.shared():
                self._tables[rope] = self._make_rotary_table(rope, name)
        return self._tables[rope]

    def _make_rotary_table(self, rope: Rope, name: str) -> tuple[ir.Value, ir.Value]:
        graph = self.graph
        inv_freq = self._inverse_frequencies(rope, name)
        with graph.scope(name):
            positions = graph.op("Cast", [self.position_ids], "positions", {"to": _FLOAT.value})
            column = graph.op("Unsqueeze", [positions, graph.constant("axis.last", np.array([-1]))], "column")
            angles = graph.op("Mul", [column, inv_freq], "angles")
            cos, sin = graph.op("Cos", [angles], "cos"), graph.op("Sin", [angles], "sin")
            if rope.attention_factor == 1:
                return cos, sin
            factor = graph.scalar("attention_factor", rope.attention_factor)
            return graph.op("Mul", [cos, factor], "cos.scaled"), graph.op("Mul", [sin, factor], "sin.scaled")

    def _inverse_frequencies(self, rope: Rope, name: str) -> ir.Value:
        """float32 [rotary_dim/2]."""
        return self.graph.constant(f"{name}.inv_freq", np.array(rope.inv_freq, np.float32))


class DecoderContext(NetworkContext):
    """Declares inputs and caches, and makes nodes that several layers need once, when the first layer asks for them."""

    def __init__(self, graph: GraphBuilder, cache: Mapping[int, CacheRounding] = NO_ROUNDING) -> None:
        """``cache`` has the roundings of keys and values by the number of the layer; others are not rounded."""
        super().__init__(graph)
        self._cache = cache
        self.past_lens = declare("past_lens", _INT64, ("batch",))
        self.features: ir.Value | None = None  # features of previous tokens, in the network of a drafting head
        self.layer_inputs: list[ir.Value] = []  # for each layer, if the model has inputs of layers
        self.layer = 0  # the number of the layer that is being made, which is in the names of what it keeps
        self.past: list[ir.Value] = []  # what layers keep, in their order
        self.present: list[ir.Value] = []
        self._keys: ir.Value | None = None  # of the first attention
        self._masks: dict[tuple[int, bool], ir.Value] = {}
        self._expert_of_feature: dict[tuple[int, int], ir.Value] = {}

    def open_cache(self, kv_heads: int, dims: tuple[int, int], kind: str = ATTENTION) -> None:
        """Declare the two caches of the layer, of a ``kind`` with attention, whose elements have ``dims``."""
        for what, dim in zip(LAYER_CACHES[kind], dims, strict=True):
            self.past.append(declare(f"past_{what}.{self.layer}", _FLOAT, ("batch", kv_heads, "max_seq", dim)))
        self._keys = self._keys or self.past[-2]

    def extend_cache(self, new: tuple[ir.Value, ir.Value], kind: str = ATTENTION) -> tuple[ir.Value, ir.Value]:
        """Append what is ``new``, [batch, kv_heads, seq, dim] each, to the caches opened last, which are returned."""
        roundings = self._cache.get(self.layer, (None, None))
        for what, past, rows, rounding in zip(LAYER_CACHES[kind], self.past[-2:], new, roundings, strict=True):
            if rounding is not None:
                rows = self.graph.rounded(rows, rounding, _last_extent(past), f"{what[0]}_cache.new")
            inputs, output = [past, rows, self.past_lens], f"present_{what}.{self.layer}"
            present = self.graph.op("TensorScatter", inputs, f"{what[0]}_cache", {"axis": 2}, output)
            present.type, present.shape = past.type, past.shape
            self.present.append(present)
        return self.present[-2], self.present[-1]

    def cache_of(self, layer: int) -> tuple[ir.Value, ir.Value]:
        """The keys and values that an earlier ``layer`` with attention keeps, those of this step included."""
        present = {value.name: value for value in self.present}
        key, value = (present[f"present_{what}.{layer}"] for what in LAYER_CACHES[ATTENTION])
        return key, value

    def open_state(self, kind: str, *shapes: tuple[int, ...]) -> list[ir.Value]:
        """Declare the state of the layer, of one of the kinds WITH_STATES; returns its parts.

        The first of ``shapes`` has the channels and the number of inputs that a convolution looks back, the second the
        heads with the sizes of their keys and values.
        """
        for what, shape in zip(LAYER_CACHES[kind], shapes, strict=True):
            self.past.append(declare(f"past_{what}.{self.layer}", _FLOAT, ("batch", *shape)))
        return self.past[-len(shapes) :]

    def keep_state(self, *parts: ir.Value) -> None:
        """Make ``parts`` the state, opened last, after the step."""
        for past, present in zip(self.past[-len(parts) :], parts, strict=True):
            present.name = str(past.name).replace("past_", "present_", 1)
            present.type, present.shape = past.type, past.shape
            self.present.append(present)

    def total_lens(self) -> ir.Value:
        """int64 [batch]: the tokens of each row, new ones included."""

        def make() -> ir.Value:
            new_tokens = self.graph.op("Shape", [self.input_ids], "nonpad.new_tokens", {"start": 1, "end": 2})
            return self.graph.op("Add", [self.past_lens, new_tokens], "nonpad")

        return self.once("nonpad", make)

    def _inverse_frequencies(self, rope: Rope, name: str) -> ir.Value:
        """The frequencies of ``rope``, or ``rope.long`` if caches are long; a layer must have opened a cache before."""
        graph, usual = self.graph, super()._inverse_frequencies(rope, name)
        if rope.long is None:
            return usual
        long = graph.constant(f"{name}.long_inv_freq", np.array(rope.long.inv_freq, np.float32))
        length = graph.constant(f"{name}.original_length", np.array(rope.long.original_length))
        with graph.scope(name):
            max_seq = self._max_seq("max_seq")
            is_long = graph.op("Greater", [max_seq, length], "is_long")
            return graph.op("Where", [is_long, long, usual], "frequencies")

    def window_mask(self, window: int, chunked: bool = False) -> ir.Value:
        """bool [batch, 1, seq, max_seq], true where a key slot lies inside the window: slot > position - window.

        With ``chunked``, true where a slot lies in the position's chunk of ``window`` positions, or after it. Attention
        itself masks the keys after the query. Only layers that have a cache may ask for this mask.
        """
        key = window, chunked
        if key not in self._masks:
            with self.graph.shared(), self.graph.scope(f"mask.{'chunk' if chunked else 'window'}_{window}"):
                self._masks[key] = self._make_chunk_mask(window) if chunked else self._make_window_mask(window)
        return self._masks[key]

    def temperature(self, floor_scale: int, attn_scale: float, floor_offset: int) -> ir.Value:
        """float32 [batch, 1, seq, 1]: 1 + attn_scale * log(1 + floor((position + floor_offset) / floor_scale))."""

        graph, name = self.graph, f"temperature_{floor_scale}"

        def make() -> ir.Value:
            with graph.scope(name):
                _, positions = self._slots_and_positions()
                offset = graph.constant(f"floor_offset_{floor_offset}", np.array(floor_offset))
                counts = graph.op("Add", [positions, offset], "counts")
                width = graph.constant(f"floor_scale_{floor_scale}", np.array(floor_scale))
                steps = graph.op("Div", [counts, width], "steps")
                as_float = graph.op("Cast", [steps], "steps.cast", {"to": _FLOAT.value})
                one = graph.constant("one.float", np.array(1, np.float32))
                log = graph.op("Log", [graph.op("Add", [as_float, one], "raised")], "log")
                scale = graph.constant("attn_scale", np.array(attn_scale, np.float32))
                return graph.op("Add", [graph.op("Mul", [log, scale], "scaled"), one], "factor")

        return self.once(name, make)

    def expert_of_feature(self, experts: int, inner: int) -> ir.Value:
        """int64 [experts * inner]: the expert of each inner feature; the features of all experts are concatenated."""
        key, graph = (experts, inner), self.graph
        if key not in self._expert_of_feature:
            with graph.shared(), graph.scope(f"experts_{experts}_{inner}"):
                zero, one = graph.constant("zero", np.array(0)), graph.constant("one", np.array(1))
                count = graph.constant(f"count_{experts * inner}", np.array(experts * inner))
                features = graph.op("Range", [zero, count, one], "features")
                width = graph.constant(f"width_{inner}", np.array(inner))
                self._expert_of_feature[key] = graph.op("Div", [features, width], "of_feature")
        return self._expert_of_feature[key]

    def first_position_mask(self, first: int) -> ir.Value:
        """bool [batch, 1, seq, max_seq], true where slot >= min(first, position)."""
        graph = self.graph
        with graph.shared(), graph.scope(f"mask.from_{first}"):
            slots, positions = self._slots_and_positions()
            bound = graph.op("Min", [positions, graph.constant(f"first_{first}", np.array(first))], "bound")
            return graph.op("GreaterOrEqual", [slots, bound], "inside")

    def _max_seq(self, name: str) -> ir.Value:
        """int64 [1]: the slots of each cache, by the first one that a layer opened."""
        return self.graph.op("Shape", [self._keys], name, {"start": 2, "end": 3})

    def _slots_and_positions(self) -> tuple[ir.Value, ir.Value]:
        """int64 [max_seq] and [batch, 1, seq, 1]."""
        graph = self.graph
        length = self._max_seq("max_seq.shape")
        max_seq = graph.op("Squeeze", [length], "max_seq")
        zero, one = graph.constant("zero", np.array(0)), graph.constant("one", np.array(1))
        slots = graph.op("Range", [zero, max_seq, one], "slots")
        axes = graph.constant("axes.head_and_slot", np.array([1, 3]))
        return slots, graph.op("Unsqueeze", [self.position_ids, axes], "positions")

    def _make_chunk_mask(self, size: int) -> ir.Value:
        graph = self.graph
        slots, positions = self._slots_and_positions()
        width = graph.constant(f"chunk_{size}", np.array(size))
        start = graph.op("Mul", [graph.op("Div", [positions, width], "number"), width], "start")
        return graph.op("GreaterOrEqual", [slots, start], "inside")

    def _make_window_mask(self, window: int) -> ir.Value:
        graph = self.graph
        slots, positions = self._slots_and_positions()
        width = graph.constant(f"window_{window}", np.array(window))
        return graph.op("Greater", [slots, graph.op("Sub", [positions, width], "start")], "inside")


def _last_extent(value: ir.Value) -> int:
    assert value.shape is not None
    extent = value.shape[-1]
    assert isinstance(extent, int)
    return extent


def declare(name: str, dtype: ir.DataType, shape: tuple[int | str, ...]) -> ir.Value:
    """An input of the network."""
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
