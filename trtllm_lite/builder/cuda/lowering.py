"""Turns the fused graph into the launches and products of one program.

Two things differ from the graph's own operators. An RmsNorm happens in the prologue of the product that reads it where
that product is a streaming kernel, so it is lowered only when something asks for its rows; and the residual Add in
front of it happens in the epilogue of the product before.
"""

from collections.abc import Callable

import onnx_ir as ir

from trtllm_lite.builder.cuda.layout import Step
from trtllm_lite.builder.cuda.limits import Bucket
from trtllm_lite.builder.cuda.operands import Operands
from trtllm_lite.builder.cuda.products.sites import Chooser, Site, implement
from trtllm_lite.builder.cuda.unsupported import refuse_unsupported
from trtllm_lite.builder.graph import attribute, dims, fused_by, only_user
from trtllm_lite.builder.passes.last_token_gather import NUM_LOGITS
from trtllm_lite.builder.passes.remove_padding import NUM_TOKENS
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.cuda.stream import StreamConfig, Streaming, stream_config
from trtllm_lite.plugins.embedding.cuda import embedding
from trtllm_lite.plugins.gated_linear import cuda as gated_linear
from trtllm_lite.plugins.gather_rows.cuda import gather_rows
from trtllm_lite.plugins.launch import Buffer, Device, Extent, Launch, features, symbol
from trtllm_lite.plugins.layer_norm.cuda import layer_norm
from trtllm_lite.plugins.linear import cuda as linear
from trtllm_lite.plugins.paged_attention import cuda as attention
from trtllm_lite.plugins.position_embedding.cuda import position_embedding
from trtllm_lite.plugins.rms_norm.cuda import rms_norm
from trtllm_lite.plugins.rotary_table.cuda import rotary_table
from trtllm_lite.plugins.rowwise.cuda import rowwise
from trtllm_lite.plugins.rowwise.expression import MAX_ROWS, MAX_VECTORS
from trtllm_lite.plugins.sample.cuda import sample

_VECTOR = 8  # 16-bit elements of one load or store
Norm = tuple[Buffer, float]  # weight and epsilon
_NORMS = ("RmsNorm", "LayerNorm")  # x, weight, residual; a LayerNorm has a bias, too


def lower(graph: ir.Graph, operands: Operands, device: Device, bucket: Bucket, choose: Chooser) -> list[Step]:
    """The program for steps of ``bucket``; ``choose`` says what computes products that are not streamed.

    Raises BuildError, which lists what the kernels do not support.
    """
    refuse_unsupported(graph)
    return _Lowering(graph, operands, device, bucket, choose).run()


class _Lowering:
    def __init__(self, graph: ir.Graph, operands: Operands, device: Device, bucket: Bucket, choose: Chooser) -> None:
        self.graph, self.operands, self.device, self.bucket, self.choose = graph, operands, device, bucket, choose
        self.steps: list[Step] = []
        self.buffers: dict[ir.Value, Buffer] = {}
        self.slots = Buffer("slots", "int32", (NUM_TOKENS,))
        self.emit: dict[str, Callable[[ir.Node], None]] = {
            "Embedding": self._embedding,
            "RotaryTable": self._rotary_table,
            "PositionEmbedding": self._position_embedding,
            "RmsNorm": self._norm,
            "LayerNorm": self._norm,
            "Rowwise": self._rowwise,
            "Linear": self._linear,
            "GatedLinear": self._gated_linear,
            "PagedAttention": self._paged_attention,
            "GatherRows": self._gather_rows,
        }
        self.lazy = {node for node in graph if node.op_type in _NORMS or self._is_fused_qkv(node)}

    def run(self) -> list[Step]:
        for node in self.graph:
            if node not in self.lazy:
                self._buffer(node.outputs[0])
        operands = self.operands
        inputs, max_rows = operands.inputs, self.bucket.max_tokens  # the same kernels whatever the batch size
        self.steps.append(sample(operands.sampled, operands.logits, inputs, self.device, max_rows))
        return self.steps

    def _buffer(self, value: ir.Value | None) -> Buffer:
        """The rows of a value, which are computed now if they are not yet."""
        assert value is not None
        if value not in self.buffers:
            node = value.producer()
            assert node is not None
            self.emit[node.op_type](node)
        return self.buffers[value]

    def _new(self, value: ir.Value, dtype: str | None = None) -> Buffer:
        buffer = Buffer(str(value.name), dtype or self.operands.dtype, self._shape(value))
        if dtype is None and features(buffer) % _VECTOR:
            raise BuildError(
                f"rows of {value.name} have {features(buffer)} elements, and the GPU kernels move {_VECTOR} at a time: "
                f"expected a multiple of {_VECTOR}"
            )
        self.buffers[value] = buffer
        return buffer

    def _shape(self, value: ir.Value) -> tuple[int | str, ...]:
        shape = dims(value)
        assert shape is not None
        assert None not in shape
        return tuple(extent for extent in shape if extent is not None)

    def _rows(self, value: ir.Value) -> Extent:
        """Rows of a value at run time; a decode program has a row of logits per token."""
        rows = self._shape(value)[0]
        assert rows in (NUM_TOKENS, NUM_LOGITS)
        return symbol(NUM_TOKENS if self.bucket.decode else rows)

    def _max_rows(self, value: ir.Value) -> int:
        """The most rows of a value in steps of this bucket."""
        symbols, rows = self.operands.symbols, self._shape(value)[0]
        assert isinstance(rows, str)
        return min(self.bucket.max_tokens, symbols[rows])

    def _embedding(self, node: ir.Node) -> None:
        inputs, table = self.operands.inputs, self.operands.matrix(_input(node, 1))
        ids = (inputs["token_ids"], inputs["token_slots"], self.operands.sampled.last_tokens)
        self.steps.append(embedding(self._new(node.outputs[0]), table, *ids))

    def _rotary_table(self, node: ir.Node) -> None:
        operands = self.operands
        cos, sin = (self._new(output, "float32") for output in node.outputs)
        self.steps.append(
            rotary_table(
                cos,
                sin,
                self.slots,
                operands.vector(_input(node, 1)),
                operands.inputs,
                operands.sampled.last_tokens,
                scale=attribute(node, "scale"),
                tokens_per_block=operands.limits.tokens_per_block,
            )
        )

    def _gather_rows(self, node: ir.Node) -> None:
        source = self._buffer(node.inputs[0])
        if self.bucket.decode:  # the rows are those already
            self.buffers[node.outputs[0]] = source
        else:
            y = self._new(node.outputs[0])
            self.steps.append(gather_rows(y, source, self.operands.inputs["logits_indices"]))

    def _position_embedding(self, node: ir.Node) -> None:
        x, table = self._buffer(node.inputs[0]), self.operands.matrix(_input(node, 2))
        max_seq_len, rows = self.operands.limits.max_seq_len, table.shape[0]
        if isinstance(rows, int) and rows < max_seq_len:
            raise BuildError(
                f"max_seq_len is {max_seq_len}, and the table {table.name} knows {rows} positions: set max_seq_len "
                f"(and max_input_len) to at most {rows}"
            )
        positions = self.operands.inputs["position_ids"]
        self.steps.append(position_embedding(self._new(node.outputs[0]), x, positions, table))

    def _rowwise(self, node: ir.Node) -> None:
        value = node.outputs[0]
        operands = [self._buffer(x) for x in node.inputs[:MAX_ROWS] if x is not None]
        vectors = [self.operands.vector(v) for v in node.inputs[MAX_ROWS : MAX_ROWS + MAX_VECTORS] if v is not None]
        given = _input_or_none(node, MAX_ROWS + MAX_VECTORS)
        constants = None if given is None else self.operands.vector(given)
        y = self._result(value)
        self.steps.append(rowwise(y, attribute(node, "program"), self._rows(value), operands, vectors, constants))

    def _result(self, value: ir.Value) -> Buffer:
        """Where an operator that may make logits writes; what becomes logits row by row is float32 as they are."""
        if value.is_graph_output():
            self.buffers[value] = self.operands.logits
            return self.operands.logits
        reader: ir.Node | None = only_user(value)
        while reader is not None and reader.op_type == "Rowwise" and not reader.outputs[0].is_graph_output():
            reader = only_user(reader.outputs[0])
        return self._new(value, "float32" if reader is not None and reader.op_type == "Rowwise" else None)

    def _norm(self, node: ir.Node) -> None:
        source, rows = self._norm_source(node), self._rows(node.outputs[0])
        weight, epsilon = self._norm_weight(node)
        more: dict[str, Buffer] = {}
        if source is None:
            source = self._buffer(node.inputs[0])
            total = Buffer(f"{node.name}.sum", self.operands.dtype, self._shape(node.outputs[0]))
            more = {"residual": self._buffer(node.inputs[2]), "total": total}
            self.buffers |= dict.fromkeys(node.outputs[1:], total)
        y = self._new(node.outputs[0])
        if node.op_type == "RmsNorm":
            self.steps.append(rms_norm(y, source, weight, epsilon, rows, **more))
            return
        bias = _input_or_none(node, 3)
        more |= {} if bias is None else {"bias": self.operands.vector(bias)}
        self.steps.append(layer_norm(y, source, weight, epsilon, rows, **more))

    def _norm_weight(self, node: ir.Node) -> Norm:
        return self.operands.vector(_input(node, 1)), attribute(node, "epsilon")

    def _norm_source(self, node: ir.Node) -> Buffer | None:
        """The one buffer that the norm reads: its input, or the sum that the product before it makes; None if two."""
        producer = fused_by(node.inputs[0], "Linear")
        summed = producer is not None and _residual_norm(producer) is node
        return self._buffer(node.inputs[0]) if summed or _input_or_none(node, 2) is None else None

    def _prologue(self, value: ir.Value | None, config: StreamConfig | None) -> tuple[Buffer, Norm | None]:
        """Rows for a product: those in front of the norm, with the norm, where the product can do it."""
        norm = fused_by(value, "RmsNorm")
        if norm is not None and value is norm.outputs[0] and config is not None and not config.stream_x:
            source = self._norm_source(norm)
            if source is not None:
                return source, self._norm_weight(norm)
        return self._buffer(value), None

    def _config(self, node: ir.Node) -> StreamConfig | None:
        """How the product streams its weight; None if it is one of many rows, or too large for it."""
        if not self.bucket.decode:
            return None
        *_, out_features, in_features = self._shape(_input(node, 1))
        return stream_config(out_features, in_features, self.bucket.max_tokens, self.device)

    def _linear(self, node: ir.Node) -> None:
        weight, value, config = self.operands.matrix(_input(node, 1)), node.outputs[0], self._config(node)
        x, norm = self._prologue(node.inputs[0], config)
        sum_reader = _residual_norm(node)
        residual = None if sum_reader is None else self._buffer(sum_reader.inputs[2])
        y, activation = self._result(value), attribute(node, "activation")
        if sum_reader is not None:
            self.buffers |= dict.fromkeys(sum_reader.outputs[1:], y)
        rows, bias = self._rows(value), _input_or_none(node, 2)
        if config is None:
            forms = None if bias is None else self.operands.bias(bias)
            self._product(Site(y, x, weight, rows, self._max_rows(value), activation, residual, forms))
        else:
            vector = None if bias is None else self.operands.vector(bias)
            more = {"norm": norm, "bias": vector, "residual": residual, "activation": activation}
            self.steps.append(linear.stream(y, x, weight, rows, self._streaming(config), **more))

    def _gated_linear(self, node: ir.Node) -> None:
        weight, value, config = self.operands.matrix(_input(node, 1)), node.outputs[0], self._config(node)
        x, norm = self._prologue(node.inputs[0], config)
        y, rows, bias = self._new(value), self._rows(value), _input_or_none(node, 2)
        activation = attribute(node, "activation")
        if config is None:
            forms = None if bias is None else self.operands.bias(bias)
            self._product(Site(y, x, weight, rows, self._max_rows(value), activation, bias=forms))
        else:
            vector = None if bias is None else self.operands.vector(bias)
            more = {"norm": norm, "bias": vector, "activation": activation}
            self.steps.append(gated_linear.stream(y, x, weight, rows, self._streaming(config), **more))

    def _product(self, site: Site) -> None:
        self.steps += implement(site, self.choose(site), self.device)

    def _streaming(self, config: StreamConfig) -> Streaming:
        return Streaming(self.bucket.max_tokens, self.operands.dtype, self.device, config)

    def _is_fused_qkv(self, node: ir.Node) -> bool:
        """Is it a product whose epilogue rotates queries and keys and writes the cache?"""
        reader = only_user(node.outputs[0]) if node.op_type == "Linear" else None
        has_epilogue = reader is not None and reader.op_type == "PagedAttention" and _head_norms(reader) == (None, None)
        if reader is None or not has_epilogue or self._config(node) is None:
            return False
        return self._heads(reader).rotates_in_products

    def _paged_attention(self, node: ir.Node) -> None:
        operands, inputs = self.operands, self.operands.inputs
        heads = self._heads(node)
        shape = (heads.num_kv_heads, heads.head_dim)
        keys, values = (operands.cache(_input(node, position), *shape) for position in (3, 4))
        sequences = (inputs["cu_seqlens"], inputs["past_lens"], inputs["block_tables"])
        cache = attention.Cache(keys, values, *sequences, self.slots)
        query = Buffer(f"{node.name}.query", operands.dtype, self._shape(node.outputs[0]))
        self._queries(node, query, cache, heads)
        output = self._new(node.outputs[0])
        how = {"heads": heads, "device": self.device, "scores": self._scores(node)}
        most = {"max_seqs": operands.symbols["num_seqs"], "max_sms": operands.symbols["num_sms"]}
        launches = [attention.decode(output, query, cache, few_rows=self.bucket.decode, **most, **how)]
        if launches == [None]:
            self._check_batch(attention.decode(output, query, cache, few_rows=True, **most | {"max_seqs": 1}, **how))
        if not self.bucket.decode:
            launches.append(attention.prefill(output, query, cache, **how))
        for launch in launches:
            if launch is None:
                raise BuildError(
                    f"attention with a head_dim of {heads.head_dim} needs more shared memory than {self.device.arch} "
                    f"has ({self.device.shared_bytes:,} bytes a block): build for another target"
                )
            self.steps.append(launch)

    def _check_batch(self, with_one_sequence: Launch | None) -> None:
        """Raise BuildError if decode attention, which does not fit, would fit for fewer sequences."""
        if with_one_sequence is not None:
            raise BuildError(
                f"attention keeps a table of the batch in shared memory, and on {self.device.arch} there is no room "
                f"for one of {self.operands.symbols['num_seqs']:,} sequences: lower max_batch_size"
            )

    def _queries(self, node: ir.Node, query: Buffer, cache: attention.Cache, heads: attention.Heads) -> None:
        """Rotated queries; keys and values go into the cache."""
        cos, sin = (None if table is None else self._buffer(table) for table in node.inputs[1:3])
        tables = (cos, sin)
        producer = fused_by(node.inputs[0], "Linear")
        config = None if producer is None else self._config(producer)
        if producer is None or config is None or not self._is_fused_qkv(producer):
            qkv = self._buffer(node.inputs[0])
            self.steps.append(attention.rope_cache(query, cache, qkv, tables, heads=heads, norm=self._head_norm(node)))
            return
        x, norm = self._prologue(producer.inputs[0], config)
        bias = _input_or_none(producer, 2)
        vector = None if bias is None else self.operands.vector(bias)
        weight, rows = self.operands.matrix(_input(producer, 1)), self._rows(producer.outputs[0])
        how = self._streaming(config)
        self.steps.append(
            attention.qkv_stream(query, cache, x, weight, tables, rows, how, heads=heads, norm=norm, bias=vector)
        )

    def _head_norm(self, node: ir.Node) -> attention.HeadNorm | None:
        norms = [self.operands.vector(value) for value in _head_norms(node) if value is not None]
        if len(norms) == 1:
            raise BuildError(f"the GPU kernels normalise queries and keys or neither, and {node.name} does one of both")
        return attention.HeadNorm(*norms, attribute(node, "norm_epsilon")) if norms else None

    def _heads(self, node: ir.Node) -> attention.Heads:
        key_cache = dims(_input(node, 3))
        assert key_cache is not None
        _, num_kv_heads, head_dim, _ = key_cache
        num_heads, tokens_per_block = attribute(node, "num_heads"), self.operands.limits.tokens_per_block
        heads = attention.Heads(
            num_heads, num_kv_heads, head_dim, tokens_per_block, self.operands.dtype, _rotary_dim(node)
        )
        _expect_no_problems(node, heads.problems())
        return heads

    def _scores(self, node: ir.Node) -> attention.Scores:
        scores = attention.Scores(*(attribute(node, name) for name in ("scale", "window", "softcap")))
        _expect_no_problems(node, scores.problems())
        return scores


def _input(node: ir.Node, position: int) -> ir.Value:
    value = node.inputs[position]
    assert value is not None
    return value


def _input_or_none(node: ir.Node, position: int) -> ir.Value | None:
    return node.inputs[position] if position < len(node.inputs) else None


def _expect_no_problems(node: ir.Node, problems: list[str]) -> None:
    if problems:
        raise BuildError(f"the GPU kernels do not support this attention ({node.name}): {'; '.join(problems)}")


def _rotary_dim(attention: ir.Node) -> int:
    """Elements of a head that RoPE turns: two for each column of its table."""
    columns = (dims(attention.inputs[1]) or (0,))[-1]
    assert isinstance(columns, int)
    return 2 * columns


def _head_norms(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    return _input_or_none(node, 8), _input_or_none(node, 9)


def _residual_norm(node: ir.Node) -> ir.Node | None:
    """The norm that adds the product's rows, which nothing else reads, to the residual stream."""
    value = node.outputs[0]
    norm = only_user(value) if attribute(node, "activation") == "none" else None
    adds = norm is not None and norm.op_type in _NORMS and norm.inputs[0] is value
    return norm if adds and norm is not None and _input_or_none(norm, 2) is not None else None
