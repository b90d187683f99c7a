"""Operators that schemas say how to divide: all ranks together compute what one computes, or there is a reason."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from tests.tolerances import assert_close
from tests.unit.builder.interpreter import run
from trtllm_lite.builder.graph import dims, fused_node, nodes_of, operands, value_of
from trtllm_lite.builder.sharding import by_schema, shard
from trtllm_lite.errors import BuildError
from trtllm_lite.network.tensors import add_initializer
from trtllm_lite.plugins.replay import REPLAYED, ReplayState
from trtllm_lite.plugins.schema import DOMAIN, all_schemas

HIDDEN, KEY_DIM, VALUE_DIM, WIDTH = 12, 5, 6, 4
ROWS, BLOCKS = 9, 4
STEP = {  # two sequences, the second of which goes on from a state
    "cu_seqlens": np.array([0, 5, ROWS], np.int32),
    "past_lens": np.array([0, 3], np.int32),
    "block_tables": np.array([[2], [1]], np.int32),
}
STATE = {"cache_group": 0, "taken_back": 1}
LAYOUT = ReplayState(KEY_DIM, VALUE_DIM, 1, REPLAYED, 1)


class Graph:
    """A network of one layer with random weights, made operator by operator."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.x = value_of("x", ir.DataType.FLOAT, ["num_tokens", HIDDEN])
        shapes = {"cu_seqlens": ["n1"], "past_lens": ["n"], "block_tables": ["n", "most"]}
        self.step = {name: value_of(name, ir.DataType.INT32, shape) for name, shape in shapes.items()}
        self.graph = ir.Graph([self.x, *self.step.values()], [], nodes=[], opset_imports={"": 24, DOMAIN: 1})
        self.states: dict[str, np.ndarray] = {}

    def weight(self, name: str, *shape: int) -> ir.Value:
        array = self.random.normal(size=shape, scale=shape[-1] ** -0.5).astype(np.float32)
        return add_initializer(self.graph, name, ir.tensor(array))

    def add(
        self,
        op_type: str,
        name: str,
        given: Mapping[str, ir.Value],
        features: int,
        attributes: Mapping[str, int | float | str],
        made: Mapping[str, ir.Value] | None = None,
    ) -> ir.Value:
        y = value_of(f"{name}.y", ir.DataType.FLOAT, ["num_tokens", features])
        self.graph.append(fused_node(op_type, name, given, {"y": y, **(made or {})}, attributes))
        return y

    def linear(self, name: str, x: ir.Value, features: int, bias: bool = False) -> ir.Value:
        given = {"x": x, "weight": self.weight(f"{name}.weight", features, int((dims(x) or ())[-1]))}
        given |= {"bias": self.weight(f"{name}.bias", features)} if bias else {}
        return self.add("Linear", name, given, features, {"activation": "none"})

    def state(self, name: str, *shape: int) -> tuple[dict[str, ir.Value], dict[str, ir.Value]]:
        """A state as an input and an output."""
        before, after = (value_of(full, ir.DataType.FLOAT, ["b", *shape]) for full in (f"{name}.0", f"{name}_out.0"))
        self.graph.inputs.append(before)
        self.graph.outputs.append(after)
        self.states[f"{name}.0"] = self.random.normal(size=(BLOCKS, *shape)).astype(np.float32)
        return {name: before, **self.step}, {f"{name}_out": after}

    def convolution(self, x: ir.Value, bias: bool = False, features: int | None = None) -> ir.Value:
        """A convolution of the first ``features`` columns of x, or all."""
        features = features or int((dims(x) or ())[-1])
        given, made = self.state("conv_state", WIDTH, features)
        given |= {"x": x, "weight": self.weight("conv.weight", features, WIDTH)}
        given |= {"bias": self.weight("conv.bias", features)} if bias else {}
        return self.add("CausalConv", "conv", given, features, {"activation": "silu", **STATE}, made)

    def rule(self, qkv: ir.Value, a: ir.Value, b: ir.Value, key_heads: int, heads: int, **begins: int) -> ir.Value:
        given, made = self.state("recurrent_state", heads, LAYOUT.size)
        for state in self.states["recurrent_state.0"]:
            LAYOUT.views(state)[-1][...] = 0  # no token is in the matrix
        given |= {"qkv": qkv, "a": a, "b": b}
        given |= {name: self.weight(name, heads) for name in ("a_log", "dt_bias")}
        attributes = {"num_key_heads": key_heads, "scale": 0.4, "norm_epsilon": 1e-6, **LAYOUT.attributes, **STATE}
        attributes |= begins
        return self.add("GatedDeltaRule", "rule", given, heads * VALUE_DIM, attributes, made)

    def norm(self, x: ir.Value, gate: ir.Value, size: int, first: int = 0) -> ir.Value:
        given = {"x": x, "gate": gate, "weight": self.weight("norm.weight", size)}
        attributes = {"epsilon": 1e-5, "activation": "silu", "gate_first": first}
        return self.add("GatedRmsNorm", "norm", given, int((dims(x) or ())[-1]), attributes)

    def finish(self, y: ir.Value) -> ir.Graph:
        self.graph.outputs.append(y)
        return self.graph


def layer(key_heads: int = 2, heads: int = 4, of_norm: int = VALUE_DIM) -> tuple[Graph, ir.Graph]:
    """Gated DeltaNet, whose decays come from a product of low rank."""
    made = Graph()
    qkv = made.linear("qkv", made.x, 2 * key_heads * KEY_DIM + heads * VALUE_DIM)
    a = made.linear("a", made.linear("low_rank", made.x, 8), heads)
    y = made.rule(made.convolution(qkv), a, made.linear("b", made.x, heads), key_heads, heads)
    y = made.norm(y, made.linear("gate", made.x, heads * VALUE_DIM), of_norm)
    return made, made.finish(made.linear("output", y, HIDDEN, bias=True))


def joined_layer() -> tuple[Graph, ir.Graph]:
    """The layer with a single product, whose rows have queries, keys and values, then gates, b and a."""
    made = Graph()
    qkv, gates = 4 * KEY_DIM + 4 * VALUE_DIM, 4 * VALUE_DIM
    rows = made.linear("joined", made.x, qkv + gates + 8)
    y = made.rule(made.convolution(rows, features=qkv), rows, rows, 2, 4, b_first=qkv + gates, a_first=qkv + gates + 4)
    return made, made.finish(made.linear("output", made.norm(y, rows, VALUE_DIM, qkv), HIDDEN, bias=True))


def convolution() -> tuple[Graph, ir.Graph]:
    """A convolution of 20 channels between two products."""
    made = Graph()
    y = made.convolution(made.linear("input", made.x, 20, bias=True), bias=True)
    return made, made.finish(made.linear("output", y, HIDDEN))


def outputs(graph: ir.Graph, feeds: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What the last product computes, before ranks add it up, and the states afterwards."""
    for node in nodes_of(graph, "AllReduce", DOMAIN):
        node.outputs[0].replace_all_uses_with(operands(node)["x"], replace_graph_outputs=True)
        graph.remove(node, safe=True)
    found = run(ir.Model(graph, ir_version=10), feeds)
    return found.pop(str(graph.outputs[-1].name)), found


@pytest.mark.parametrize("make", [layer, joined_layer])
@pytest.mark.parametrize("tp_size", [2, 4])
def test_ranks_share_out_heads(tp_size: int, make: Callable[[], tuple[Graph, ir.Graph]]) -> None:
    made, graph = make()
    x = {"x": made.random.normal(size=(ROWS, HIDDEN)).astype(np.float32), **STEP}
    ranks = shard(graph, tp_size)
    expected, states = outputs(graph, x | made.states)
    found = np.zeros_like(expected)
    for number, rank in enumerate(ranks):
        keys, heads = max(2 // tp_size, 1), 4 // tp_size
        first_key, first = number * 2 // tp_size, number * heads
        own = {"recurrent_state.0": made.states["recurrent_state.0"][:, first : first + heads]}
        begins = [(first_key * KEY_DIM, keys * KEY_DIM), ((2 + first_key) * KEY_DIM, keys * KEY_DIM)]
        begins.append((4 * KEY_DIM + first * VALUE_DIM, heads * VALUE_DIM))
        channels = np.concatenate([np.arange(begin, begin + count) for begin, count in begins])
        own["conv_state.0"] = made.states["conv_state.0"][:, :, channels]
        assert {str(value.name): (dims(value) or ())[1:] for value in rank.inputs if str(value.name) in own} == {
            name: state.shape[1:] for name, state in own.items()
        }
        y, after = outputs(rank, x | own)
        found += y
        assert_close(after["recurrent_state_out.0"], states["recurrent_state_out.0"][:, first : first + heads])
        assert_close(after["conv_state_out.0"], states["conv_state_out.0"][:, :, channels])
        own_features = len(channels) + heads * VALUE_DIM + 2 * heads
        of_x = [("joined", own_features)] if make is joined_layer else [("low_rank", 8), ("b", heads)]
        assert {name: dims(rank.initializers[f"{name}.weight"]) for name, _ in of_x} == {
            name: (features, HIDDEN)
            for name, features in of_x  # ``a`` needs all of "low_rank"
        }
    assert_close(found, expected)


@pytest.mark.parametrize("tp_size", [2, 3, 4])
def test_ranks_share_out_channels_with_padding(tp_size: int) -> None:
    made, graph = convolution()
    x = {"x": made.random.normal(size=(ROWS, HIDDEN)).astype(np.float32), **STEP}
    ranks, expected = shard(graph, tp_size), outputs(graph, x | made.states)[0]
    share = {2: 16, 3: 8, 4: 8}[tp_size]  # with 4, the last rank has padding alone
    padded = np.pad(made.states["conv_state.0"], [(0, 0), (0, 0), (0, share * tp_size - 20)])
    parts = np.split(padded, tp_size, axis=2)
    found = sum(outputs(rank, x | {"conv_state.0": part})[0] for rank, part in zip(ranks, parts, strict=True))
    assert_close(np.asarray(found), expected)


@pytest.mark.parametrize(
    ("heads", "of_norm", "message"),
    [
        (
            (2, 4),
            4 * VALUE_DIM,
            r"norm cannot .*: the rank's features would begin or end at 12, against features % gro",
        ),
        ((2, 2), VALUE_DIM, "rule cannot .*: its 2 value heads cannot be split evenly; pass a --tp_size of 1 or 2"),
        ((3, 12), VALUE_DIM, "rule cannot .*: its 3 key heads cannot be split or repeated evenly; pass a --tp_size of"),
    ],
)
def test_heads_and_groups_stay_whole(heads: tuple[int, int], of_norm: int, message: str) -> None:
    tp_size = 2 if of_norm > VALUE_DIM else 4
    with pytest.raises(BuildError, match=f"tp_size is {tp_size}, and {message}"):
        shard(layer(*heads, of_norm)[1], tp_size)


def test_what_no_product_makes_is_refused() -> None:
    made = Graph()
    rule = made.rule(made.x, made.x, made.x, 1, 2)
    with pytest.raises(BuildError, match=r"rule cannot .*: what it reads does not come straight from a product"):
        shard(made.finish(rule), 2)
    made = Graph()
    with pytest.raises(BuildError, match=r"conv cannot .*: what it reads is not divided"):
        shard(made.finish(made.convolution(made.x)), 2)


def test_products_for_different_heads_are_refused() -> None:
    made = Graph()
    shared = made.linear("shared", made.x, 4 * KEY_DIM + 4 * VALUE_DIM)
    with pytest.raises(BuildError, match=r"shared cannot .*: operators that read it need different features"):
        shard(made.finish(made.rule(shared, shared, shared, 2, 4)), 2)


def test_columns_that_no_rank_would_have_are_refused() -> None:
    made = Graph()
    joined = made.linear("joined", made.x, 4 * KEY_DIM + 4 * VALUE_DIM + 9)
    rule = made.rule(made.convolution(joined, features=4 * KEY_DIM + 4 * VALUE_DIM), joined, joined, 2, 4, a_first=44)
    with pytest.raises(BuildError, match=r"joined cannot .*: operators that read it need different features"):
        shard(made.finish(rule), 2)


def test_layers_that_no_schema_says_how_to_divide_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = {**all_schemas(), "GatedDeltaRule": replace(all_schemas()["GatedDeltaRule"], heads=())}
    monkeypatch.setattr(by_schema, "all_schemas", lambda: schemas)
    made = Graph()
    with pytest.raises(BuildError, match=r"rule cannot .*: the schema of GatedDeltaRule does not say how ranks divide"):
        shard(made.finish(made.rule(*(made.linear(name, made.x, 4) for name in "uvw"), 1, 4)), 2)
