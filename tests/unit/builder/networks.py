"""Small random decoder networks in the pattern that ``convert`` emits, one keyword per variation of a family."""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.tape import Tape

from trtllm_lite.network.graph import note_modules
from trtllm_lite.network.module_rows import ModuleRows

FLOAT, INT64, INT32 = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.INT32


@dataclass(frozen=True)
class Shape:
    """Sizes and variations of a network; sizes are irregular on purpose."""

    layers: int = 2
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 10
    layer_kv_heads: tuple[int, ...] = ()  # key/value heads, which the layers take in turn; empty: kv_heads
    layer_head_dims: tuple[int, ...] = ()  # sizes of heads, which the layers take in turn; empty: head_dim
    value_dim: int | None = None  # size of values in the cache; None: head_dim
    hidden: int = 36
    inter: int = 50
    vocab: int = 71
    max_seq: int = 24
    windows: tuple[int, ...] = (0, 0)
    softcap: float = 0.0
    sinks: bool = False
    qkv_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norms_all_heads: bool = False  # one norm over all queries, and one over all keys
    head_layer_norms: bool = False  # a LayerNorm of each query head and of each key head
    pre_norms: bool = True
    tied: bool = True
    attention_factor: float = 1.0
    layer_norm: bool = False
    norm_bias: bool = False
    learned_positions: bool = False
    original_length: int = 0  # LongRoPE: the length up to which caches have the usual frequencies
    rotary_dim: int | None = None  # None: RoPE of whole heads; 0: no RoPE
    mlp: str = "swish"  # activation of a gated MLP, or "plain": Linear -> Gelu -> Linear
    linear_bias: bool = False  # biases of attention's output, plain MLPs and the head
    post_norms: bool = False
    parallel: bool = False
    two_norms: bool = False  # parallel blocks with a norm for each branch
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    thetas: tuple[float, ...] = (100.0,)  # RoPE bases, which the layers take in turn
    act_order: bool = False  # query, key, value and down projections read features in another order
    dtype: ir.DataType = FLOAT
    seed: int = 0

    def kv_heads_of(self, layer: int) -> int:
        """The key/value heads of a layer."""
        return self.layer_kv_heads[layer % len(self.layer_kv_heads)] if self.layer_kv_heads else self.kv_heads

    def head_dim_of(self, layer: int) -> int:
        """The size of a layer's heads."""
        return self.layer_head_dims[layer % len(self.layer_head_dims)] if self.layer_head_dims else self.head_dim


VARIANTS = {
    "llama": Shape(),
    "yarn": Shape(attention_factor=1.25, tied=False, layers=1, windows=(0,)),
    "mistral": Shape(windows=(5, 5)),
    "softcap": Shape(softcap=0.75, windows=(0, 5)),
    "sinks": Shape(sinks=True, windows=(0, 5)),
    "mixed_windows": Shape(layers=3, windows=(5, 0, 3)),
    "mixed_heads": Shape(layers=3, windows=(0, 0, 0), layer_kv_heads=(2, 1, 3), layer_head_dims=(6, 10)),
    "mixed_heads_and_windows": Shape(
        layers=4, windows=(5, 0, 5, 0), layer_kv_heads=(2, 1), layer_head_dims=(6, 14, 10), qk_norm=True
    ),
    "qwen2": Shape(qkv_bias=True, tied=False),
    "qwen3": Shape(qk_norm=True, head_dim=14),
    "mlp_bias": Shape(mlp_bias=True),
    "gpt2": Shape(
        layer_norm=True,
        norm_bias=True,
        learned_positions=True,
        rotary_dim=0,
        mlp="plain",
        qkv_bias=True,
        linear_bias=True,
    ),
    "phi3": Shape(rotary_dim=6, tied=False),
    "gemma2": Shape(
        mlp="gelu_tanh", post_norms=True, softcap=0.75, windows=(5, 0), embedding_scale=6.0, logit_softcap=1.5
    ),
    "gemma3": Shape(
        mlp="gelu_tanh", post_norms=True, qk_norm=True, windows=(5, 0), embedding_scale=6.0, thetas=(100.0, 5000.0)
    ),
    "cohere": Shape(layer_norm=True, parallel=True, logit_scale=0.0625),
    "gpt_neox": Shape(
        layer_norm=True,
        norm_bias=True,
        rotary_dim=6,
        mlp="plain",
        qkv_bias=True,
        linear_bias=True,
        parallel=True,
        two_norms=True,
        tied=False,
    ),
    "olmo2": Shape(norms_all_heads=True, post_norms=True, pre_norms=False, tied=False),
    "stablelm": Shape(head_layer_norms=True, layer_norm=True, rotary_dim=6, tied=False),
    "act_order": Shape(act_order=True),
    "geglu": Shape(mlp="gelu", mlp_bias=True, layers=1, windows=(0,)),
    "bfloat16": Shape(dtype=ir.DataType.BFLOAT16),
    "float16": Shape(dtype=ir.DataType.FLOAT16, tied=False),
}


class Network:
    """Builds one network; ``model`` holds the result with every shape inferred."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.random = np.random.default_rng(shape.seed)
        self.ops = Tape()
        self.weights: dict[str, ir.Value] = {}
        self.outputs: list[ir.Value] = []
        self.modules: dict[str, ModuleRows] = {}
        self.inputs = [
            ir.val("input_ids", INT64, ["batch", "seq"]),
            ir.val("position_ids", INT64, ["batch", "seq"]),
            ir.val("past_lens", INT64, ["batch"]),
        ]
        self.model = self._finish(self._logits())

    def _op(self, name: str, op_type: str, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
        value = self.ops.op(op_type, inputs, attributes, name=name)
        value.name = name + "_out"
        return value

    def _weight(self, name: str, *shape: int, dtype: ir.DataType = FLOAT) -> ir.Value:
        if name not in self.weights:
            array = self.random.normal(size=shape, scale=1 / np.sqrt(shape[-1])).astype(dtype.numpy())
            array = array if len(shape) > 1 else (1 + array).astype(dtype.numpy())
            self.weights[name] = self.ops.initializer(ir.tensor(array, name=name))
        return self.weights[name]

    def _constant(self, name: str, value: object, dtype: type = np.int64) -> ir.Value:
        if name not in self.weights:
            self.weights[name] = self.ops.initializer(ir.tensor(np.array(value, dtype), name=name))
        return self.weights[name]

    def _as_float32(self, path: str, weight: ir.Value) -> ir.Value:
        return weight if weight.dtype == FLOAT else self._op(path + ".cast", "Cast", weight, to=FLOAT)

    def _linear(self, path: str, x: ir.Value, weight: str, n: int, k: int, bias: bool = False) -> ir.Value:
        w = self._as_float32(path, self._weight(weight + ".weight", n, k, dtype=self.shape.dtype))
        y = self._op(path, "MatMul", x, self._op(path + ".transpose", "Transpose", w, perm=[1, 0]))
        self.modules[path] = ModuleRows(weight, ((0, n, 1),), 1, 0)
        return self._op(path + ".bias", "Add", y, self._weight(weight + ".bias", n)) if bias else y

    def _norm(self, path: str, x: ir.Value, weight: str, size: int) -> ir.Value:
        return self._op(path, "RMSNormalization", x, self._weight(weight, size), axis=-1, epsilon=1e-5)

    def _row_norm(self, path: str, x: ir.Value, weight: str) -> ir.Value:
        s = self.shape
        if not s.layer_norm:
            return self._norm(path, x, weight, s.hidden)
        bias = [self._weight(weight.replace("weight", "bias"), s.hidden)] if s.norm_bias else []
        return self._op(path, "LayerNormalization", x, self._weight(weight, s.hidden), *bias, axis=-1, epsilon=1e-5)

    def _scaled(self, path: str, x: ir.Value, factor: float) -> ir.Value:
        return self._op(path, "Mul", x, self._constant(path + ".factor", factor, np.float32)) if factor != 1 else x

    def _logits(self) -> ir.Value:
        s, ids = self.shape, self.inputs[0]
        table = self._weight("model.embed_tokens.weight", s.vocab, s.hidden, dtype=s.dtype)
        hidden = self._as_float32("embed_tokens", self._op("embed_tokens", "Gather", table, ids))
        hidden = self._scaled("embed_scale", hidden, s.embedding_scale)
        if s.learned_positions:
            positions = self._weight("model.embed_positions.weight", s.max_seq, s.hidden, dtype=s.dtype)
            rows = self._op("embed_positions", "Gather", positions, self.inputs[1])
            hidden = self._op("embed_positions.add", "Add", hidden, self._as_float32("embed_positions", rows))
        names, sizes = ("rope", "local_rope"), dict.fromkeys(map(s.head_dim_of, range(s.layers)))
        self.tables = {
            size: [self._rope(name, theta, size) for name, theta in zip(names, s.thetas, strict=False)]
            for size in (sizes if s.rotary_dim != 0 else ())
        }
        length = self._op("seq_len", "Shape", ids, start=1, end=2)
        self.nonpad = self._op("total_lens", "Add", self.inputs[2], length)
        for layer in range(s.layers):
            hidden = self._layer(layer, hidden)
        hidden = self._row_norm("final_norm", hidden, "model.norm.weight")
        head = "model.embed_tokens" if s.tied else "lm_head"
        logits = self._linear("lm_head", hidden, head, s.vocab, s.hidden, s.linear_bias)
        logits = self._scaled("logit_scale", logits, s.logit_scale)
        if s.logit_softcap:
            cap = self._constant("logit_softcap.cap", s.logit_softcap, np.float32)
            logits = self._op("logit_softcap.div", "Div", logits, cap)
            logits = self._op("logit_softcap.mul", "Mul", self._op("logit_softcap.tanh", "Tanh", logits), cap)
        return logits

    def _rope(self, name: str, theta: float, head_dim: int) -> tuple[ir.Value, ir.Value]:
        half = (self.shape.rotary_dim or head_dim) // 2
        path = f"{name}_{head_dim}" if self.shape.layer_head_dims else name
        inv_freq = self._constant(path.replace("rope", "inv_freq"), theta ** -(np.arange(half) / half), np.float32)
        if self.shape.original_length:
            inv_freq = self._by_length(path, inv_freq, half)
        position = self._op(path + ".cast", "Cast", self.inputs[1], to=FLOAT)
        column = self._op(path + ".unsqueeze", "Unsqueeze", position, self._constant("minus_one", [-1]))
        angle = self._op(path + ".angle", "Mul", column, inv_freq)
        tables = [self._op(path + ".cos", "Cos", angle), self._op(path + ".sin", "Sin", angle)]
        if self.shape.attention_factor != 1:
            factor = self._constant("rope.factor", self.shape.attention_factor, np.float32)
            tables = [self._op(f"{path}.scale_{i}", "Mul", table, factor) for i, table in enumerate(tables)]
        return tables[0], tables[1]

    def _by_length(self, path: str, usual: ir.Value, half: int) -> ir.Value:
        long = self._constant(path + ".long_inv_freq", 900 ** -(np.arange(half) / half), np.float32)
        max_seq = self._op(path + ".max_seq", "Shape", self._past(0, "key"), start=2, end=3)
        length = self._constant(path + ".original_length", self.shape.original_length)
        is_long = self._op(path + ".is_long", "Greater", max_seq, length)
        return self._op(path + ".frequencies", "Where", is_long, long, usual)

    def _mask(self, window: int) -> ir.Value:
        path = f"window_{window}"
        if path not in self.weights:
            bounds = (
                self._constant(f"mask.{name}", value) for name, value in (("0", 0), ("m", self.shape.max_seq), ("1", 1))
            )
            keys = self._op(path + ".keys", "Range", *bounds)
            axes = self._constant(path + ".axes", [1, 3])
            queries = self._op(path + ".queries", "Unsqueeze", self.inputs[1], axes)
            first = self._op(path + ".first", "Sub", queries, self._constant(path + ".size", window))
            self.weights[path] = self._op(path, "Greater", keys, first)
        return self.weights[path]

    def _heads(self, path: str, x: ir.Value, heads: int, head_dim: int, norm: str | None) -> ir.Value:
        shape = self._constant(f"heads_{heads}_{head_dim}", [0, 0, heads, head_dim])
        x = self._op(path + ".split", "Reshape", x, shape)
        if norm is not None:
            x = self._head_norm(path + ".norm", x, norm, heads, head_dim)
        return self._op(path + ".swap", "Transpose", x, perm=[0, 2, 1, 3])

    def _head_norm(self, path: str, x: ir.Value, weight: str, heads: int, head_dim: int) -> ir.Value:
        if not self.shape.head_layer_norms:
            return self._norm(path, x, weight, head_dim)
        ones = self._constant(f"ones_{head_dim}", [1.0] * head_dim, np.float32)
        normed = self._op(f"{path}.plain", "LayerNormalization", x, ones, axis=-1, epsilon=1e-5)
        return self._op(path, "Mul", normed, self._weight(weight, heads, head_dim))

    def _attention(self, path: str, layer: int, x: ir.Value) -> ir.Value:
        s, prefix = self.shape, f"model.layers.{layer}.self_attn."
        if s.act_order:
            x = self._in_order(path + ".in_order", x, s.hidden)
        states = []
        kv_heads, head_dim = s.kv_heads_of(layer), s.head_dim_of(layer)
        for kind, heads in (("q", s.heads), ("k", kv_heads), ("v", kv_heads)):
            name = f"{path}.{kind}_proj"
            y = self._linear(name, x, prefix + kind + "_proj", heads * head_dim, s.hidden, s.qkv_bias)
            norm = f"{prefix}{kind}_norm.weight" if (s.qk_norm or s.head_layer_norms) and kind != "v" else None
            if s.norms_all_heads and kind != "v":
                y = self._norm(f"{path}.{kind}_norm", y, f"{prefix}{kind}_norm.weight", heads * head_dim)
            y = self._heads(f"{path}.{kind}", y, heads, head_dim, norm)
            if kind != "v" and self.tables:
                table, partial = self.tables[head_dim][layer % len(s.thetas)], {}
                if s.rotary_dim is not None:
                    partial = {"rotary_embedding_dim": s.rotary_dim, "num_heads": heads}
                y = self._op(f"{path}.{kind}_rope", "RotaryEmbedding", y, *table, **partial)
            states.append(y)
        caches = [self._scatter(path, layer, kind, y) for kind, y in zip(("key", "value"), states[1:], strict=True)]
        window = s.windows[layer]
        mask, lens = self._mask(window) if window else None, self.nonpad
        if s.sinks:
            caches = [
                self._op(f"{path}.sink_{kind}", "Pad", cache, self._constant("sink.token", [0, 0, 1, 0, 0, 0, 0, 0]))
                for kind, cache in zip(("key", "value"), caches, strict=True)
            ]
            lens = self._op(path + ".sink_lens", "Add", lens, self._constant("one", 1))
            mask = self._mask_with_sinks(path, prefix, layer, mask)
        inputs = (states[0], *caches, mask, None, None, lens)
        cap = {"softcap": s.softcap} if s.softcap else {}
        y = self._op(path, "Attention", *inputs, is_causal=1, scale=head_dim**-0.5, **cap)
        y = self._op(path + ".swap", "Transpose", y, perm=[0, 2, 1, 3])
        y = self._op(path + ".merge", "Reshape", y, self._constant("merge_heads", [0, 0, -1]))
        return self._linear(path + ".o_proj", y, prefix + "o_proj", s.hidden, s.heads * head_dim, s.linear_bias)

    def _mask_with_sinks(self, path: str, prefix: str, layer: int, mask: ir.Value | None) -> ir.Value:
        shape = self._constant("sink.shape", [1, self.shape.heads, 1, 1])
        column = self._op(path + ".sink_column", "Reshape", self._weight(prefix + "sinks", self.shape.heads), shape)
        max_seq = self._op(path + ".sink_max_seq", "Shape", self._past(layer, "key"), start=2, end=3)
        pads = self._op(path + ".sink_pads", "Concat", self._constant("sink.zeros", [0] * 7), max_seq, axis=0)
        scores = self._op(path + ".sink_scores", "Pad", column, pads)
        if mask is None:
            seq = self._op(path + ".sink_seq", "Shape", self.inputs[0], start=1, end=2)
            extents = self._op(path + ".sink_extents", "Concat", seq, self._constant("sink.one", [1]), axis=0)
            return self._op(path + ".sink_mask", "Expand", scores, extents)
        slot, true = self._constant("sink.slot", [0, 0, 0, 1, 0, 0, 0, 0]), self._constant("sink.true", True, bool)
        seen = self._op(path + ".sink_seen", "Pad", mask, slot, true)
        hidden = self._constant("sink.hidden", -np.inf, np.float32)
        return self._op(path + ".sink_mask", "Where", seen, scores, hidden)

    def _past(self, layer: int, kind: str) -> ir.Value:
        name, s = f"past_{kind}.{layer}", self.shape
        if name not in {value.name for value in self.inputs}:
            shape = ["batch", s.kv_heads_of(layer), "max_seq", s.head_dim_of(layer)]
            self.inputs.append(ir.val(name, FLOAT, shape))
        return next(value for value in self.inputs if value.name == name)

    def _scatter(self, path: str, layer: int, kind: str, new: ir.Value) -> ir.Value:
        past = self._past(layer, kind)
        present = self._op(f"{path}.{kind}_cache", "TensorScatter", past, new, self.inputs[2], axis=2)
        present.name = f"present_{kind}.{layer}"
        self.outputs.append(present)
        return present

    def _layer(self, layer: int, hidden: ir.Value) -> ir.Value:
        s, path, prefix = self.shape, f"layers.{layer}", f"model.layers.{layer}."
        x = self._pre_norm(path + ".input_norm", hidden, prefix + "input_layernorm.weight")
        mixed = self._attention(path + ".attention", layer, x)
        if s.post_norms:
            mixed = self._row_norm(path + ".attention_norm", mixed, prefix + "attention_norm.weight")
        stream = hidden
        hidden = self._op(path + ".attention.add", "Add", hidden, mixed)
        if not s.parallel or s.two_norms:
            read = stream if s.parallel else hidden
            x = self._pre_norm(path + ".post_norm", read, prefix + "post_attention_layernorm.weight")
        expanded = self._mlp(path, prefix, x)
        if s.post_norms:
            expanded = self._row_norm(path + ".mlp_norm", expanded, prefix + "mlp_norm.weight")
        return self._op(path + ".mlp.add", "Add", hidden, expanded)

    def _pre_norm(self, path: str, x: ir.Value, weight: str) -> ir.Value:
        return self._row_norm(path, x, weight) if self.shape.pre_norms else x

    def _mlp(self, path: str, prefix: str, x: ir.Value) -> ir.Value:
        s = self.shape
        if s.mlp == "plain":
            wide = self._linear(path + ".mlp.up_proj", x, prefix + "mlp.up_proj", s.inter, s.hidden, s.linear_bias)
            act = self._op(path + ".mlp.gelu", "Gelu", wide, approximate="tanh")
            down = path + ".mlp.down_proj"
            return self._linear(down, act, prefix + "mlp.down_proj", s.hidden, s.inter, s.linear_bias)
        gate = self._linear(path + ".mlp.gate_proj", x, prefix + "mlp.gate_proj", s.inter, s.hidden, s.mlp_bias)
        up = self._linear(path + ".mlp.up_proj", x, prefix + "mlp.up_proj", s.inter, s.hidden, s.mlp_bias)
        act = self._op(path + ".mlp.mul", "Mul", self._gate(path + ".mlp." + s.mlp, gate), up)
        if s.act_order:
            act = self._in_order(path + ".mlp.in_order", act, s.inter)
        return self._linear(path + ".mlp.down_proj", act, prefix + "mlp.down_proj", s.hidden, s.inter, s.mlp_bias)

    def _in_order(self, path: str, x: ir.Value, features: int) -> ir.Value:
        order = self.random.permutation(features)
        return self._op(path, "Gather", x, self._constant(path + ".order", order, np.int32), axis=-1)

    def _gate(self, path: str, x: ir.Value) -> ir.Value:
        if self.shape.mlp == "swish":
            return self._op(path, "Swish", x)
        return self._op(path, "Gelu", x, approximate="tanh" if self.shape.mlp == "gelu_tanh" else "none")

    def _finish(self, logits: ir.Value) -> ir.Model:
        logits.name = "logits"
        for value in (logits, *self.outputs):
            value.dtype = FLOAT
        graph = ir.Graph(
            self.inputs,
            [logits, *self.outputs],
            nodes=self.ops.nodes,
            initializers=self.ops.initializers,
            opset_imports={"": 24},
            name="network",
        )
        model = ir.Model(graph, ir_version=11)
        note_modules(model, self.modules)
        return with_shapes(model)


def with_shapes(model: ir.Model) -> ir.Model:
    """``model`` with the shape and type of every value inferred."""
    return ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model), strict_mode=True, data_prop=True))


def network(variant: str | Shape = "llama") -> ir.Model:
    """One of :data:`VARIANTS`, or a network of any :class:`Shape`."""
    return Network(variant if isinstance(variant, Shape) else VARIANTS[variant]).model
