"""Turns the fused graph into the launches and products of one program.

The function ``lower`` in ``plugins/<op>/cuda.py`` lowers an operator; this module has the functions that it may call.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, NoReturn

import onnx_ir as ir

from trtllm_lite.builder.cuda.limits import CONVERT_ONCE, Bucket, max_decode_seqs, size_class
from trtllm_lite.builder.cuda.operands import Operands, buffer_of
from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind, known_dims, rows_of, static_dims
from trtllm_lite.builder.cuda.passes import run_device_passes
from trtllm_lite.builder.cuda.products.dense import DenseSite
from trtllm_lite.builder.cuda.products.grouped import GroupedSite
from trtllm_lite.builder.cuda.products.sites import Chooser
from trtllm_lite.builder.passes.last_token_gather import NUM_LOGITS
from trtllm_lite.builder.passes.patch_rows import NUM_TOKEN_ROWS
from trtllm_lite.builder.passes.remove_padding import NUM_IMAGE_ROWS, NUM_SEQS, NUM_TOKENS
from trtllm_lite.common.vocabulary import MODULE_USES
from trtllm_lite.errors import BuildError
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.plugins.cuda.few_rows import FewRows
from trtllm_lite.plugins.cuda.grouped import ExpertChoice
from trtllm_lite.plugins.cuda.lowering import Norm
from trtllm_lite.plugins.cuda.peer_rows import HERE, PeerRows
from trtllm_lite.plugins.cuda.row_scales import RowScales
from trtllm_lite.plugins.cuda.tiles import TILED_ARCH
from trtllm_lite.plugins.cuda.weight_form import BYTE_PRODUCTS, form_of
from trtllm_lite.plugins.launch import Buffer, Command, Device, Extent, WeightBuffers, features, symbol
from trtllm_lite.plugins.linear.cuda import dequantize
from trtllm_lite.plugins.low_rank.cuda import AdapterMatrices
from trtllm_lite.plugins.paged_attention.new_tokens import NewTokens
from trtllm_lite.plugins.schema import Schema, all_schemas

_RESULTS = frozenset(use.output for use in MODULE_USES.values())
_VECTOR = 8  # 16-bit elements of one load or store


def lower(ops: list[Op], operands: Operands, device: Device, bucket: Bucket, choose: Chooser) -> list[Command]:
    """Lower ``ops`` to the program for steps of ``bucket``; ``choose`` picks kernels of products other than GEMVs.

    Raises BuildError for what the kernels do not support.
    """
    kind = ProgramKind(device, bucket, operands.limits)
    ops = run_device_passes(ops, kind)
    program = _Program(kind, operands, choose, Links(ops), operands.received | operands.taken)
    commands: list[Command] = []
    for op in ops:
        commands += _kernels_of(all_schemas()[op.kind]).lower(_OpLowering(op, program))
    return commands


def _kernels_of(schema: Schema) -> ModuleType:
    """The operator's ``cuda.py``. Raises BuildError if it has none."""
    try:
        return schema.part("cuda")
    except ModuleNotFoundError as error:
        if error.name != f"{schema.package.module}.{schema.folder}.cuda":
            raise
        raise BuildError(
            f"the operator {schema.name} of the package {schema.package.name} has no kernel for GPUs: build for "
            "--target cpu, or add cuda.py to its folder (docs/contributing/out-of-tree.md)"
        ) from error


@dataclass
class _Program:
    """State shared by the operators of one program; ``buffers`` are the values that were computed so far."""

    kind: ProgramKind
    operands: Operands
    choose: Chooser
    links: Links
    buffers: dict[ir.Value, Buffer] = field(default_factory=dict)

    def becomes_result(self, value: ir.Value) -> bool:
        """Return whether ``value`` is the first output of a module (logits, embeddings, scores), or becomes it through
        operators that keep rows of float32."""
        while value.name not in _RESULTS:
            reader = self.links.only_reader(value)
            if reader is None or reader.kind not in ("Rowwise", "GatherColumns", "AllGather"):
                return False
            value = reader.outputs["y"]
        return True


class _OpLowering:
    """One operator while it is lowered; implements ``Lowering`` of ``plugins/cuda/lowering.py``."""

    def __init__(self, op: Op, program: _Program) -> None:
        self._op, self._program, self._operands = op, program, program.operands
        self.name = op.name

    @property
    def device(self) -> Device:
        return self._program.kind.device

    @property
    def dtype(self) -> str:
        return self._operands.dtype

    @property
    def decode(self) -> bool:
        return self._program.kind.bucket.decode

    @property
    def deterministic(self) -> bool:
        return self._operands.limits.deterministic

    @property
    def max_tokens(self) -> int:
        return self._program.kind.bucket.max_tokens

    @property
    def has_many_rows(self) -> bool:
        return self._program.kind.bucket.above >= CONVERT_ONCE

    @property
    def max_seq_len(self) -> int:
        return self._operands.limits.max_seq_len

    @property
    def max_draft_len(self) -> int:
        return self._operands.limits.max_draft_len

    @property
    def max_decode_seqs(self) -> int:
        """The most sequences with new tokens in a decode step."""
        return max_decode_seqs(self._operands.limits)

    @property
    def tokens_per_block(self) -> int:
        return self._operands.limits.tokens_per_block

    @property
    def block_bytes(self) -> int:
        return self._operands.block.num_bytes

    @property
    def symbols(self) -> Mapping[str, int]:
        return self._operands.symbols

    @property
    def num_ranks(self) -> int:
        return self._operands.limits.tp_size

    @property
    def collective(self) -> int:
        return self._operands.collective(self.name)

    def has(self, operand: str) -> bool:
        return operand in self._op.inputs or operand in self._op.outputs

    def attribute(self, name: str) -> Any:
        return self._op.attributes[name]

    def extents(self, operand: str) -> tuple[int | str, ...]:
        return known_dims({**self._op.inputs, **self._op.outputs}[operand])

    def num_rows(self, operand: str) -> Extent:
        return self._num_rows(self.extents(operand)[0])

    def _num_rows(self, rows: int | str) -> Extent:
        assert rows in (NUM_TOKENS, NUM_LOGITS, NUM_SEQS, NUM_TOKEN_ROWS, NUM_IMAGE_ROWS)
        return symbol(NUM_TOKENS if self.decode else rows)  # a decode program has a row of logits per token

    def step_input(self, operand: str) -> Buffer:
        return self._operands.inputs[str(self._storage(operand).name)]

    def state(self, operand: str) -> Buffer:
        return self._operands.state(self._storage(operand))

    def scales(self, operand: str) -> RowScales | None:
        attributes, name = self._op.attributes, f"{operand}_scale"
        dtype, value = attributes.get(f"{operand}_type"), attributes.get(name)
        if dtype is None:
            return None
        assert isinstance(dtype, str)
        assert isinstance(value, float)
        per_row = bool(attributes[f"{operand}_row_scales"])
        made = self.new(name, "float32") if name in self._op.outputs else self.optional_rows(name)
        return RowScales(dtype, value, per_row, made)

    def rows(self, operand: str) -> Buffer:
        return self._program.buffers[self._op.inputs[operand]]

    def optional_rows(self, operand: str) -> Buffer | None:
        return self.rows(operand) if self.has(operand) else None

    def new(self, output: str, dtype: str | None = None) -> Buffer:
        value = self._op.outputs[output]
        own = str(self._op.attributes.get(f"{output}_type", self.dtype))
        buffer = Buffer(str(value.name), dtype or own, known_dims(value))
        if dtype is None and features(buffer) % _VECTOR:
            raise BuildError(
                f"rows of {value.name} have {features(buffer)} elements, and the GPU kernels move {_VECTOR} at a time: "
                f"expected a multiple of {_VECTOR}"
            )
        self._program.buffers[value] = self._operands.output(buffer) if value.is_graph_output() else buffer
        return self._program.buffers[value]

    def result(self, output: str) -> Buffer:
        return self.new(output, "float32" if self._program.becomes_result(self._op.outputs[output]) else None)

    def place(self, output: str, buffer: Buffer) -> Buffer:
        self._program.buffers[self._op.outputs[output]] = buffer
        return buffer

    def output(self, output: str) -> Buffer:
        value = self._op.outputs[output]
        self._program.buffers[value] = self._operands.output(buffer_of(value))
        return self._program.buffers[value]

    def matrix(self, operand: str) -> Buffer:
        return self._operands.matrix(self._op.inputs[operand])

    def weight(self) -> WeightBuffers:
        return self._operands.weight(self._op.inputs, rows_of(self._op))

    def indices(self, operand: str, below: int) -> Buffer:
        return self._operands.indices(self._op.inputs[operand], below)

    def vector(self, operand: str) -> Buffer:
        return self._operands.vector(self._op.inputs[operand])

    def optional_vector(self, operand: str) -> Buffer | None:
        return self.vector(operand) if self.has(operand) else None

    def adapters(self, in_features: int, widths: tuple[int, ...]) -> AdapterMatrices:
        first, max_rank = self._op.attributes["first_part"], self._op.attributes["max_rank"]
        assert isinstance(first, int)
        assert isinstance(max_rank, int)
        return self._operands.adapters(first, in_features, widths, max_rank)

    def cache(self, operand: str, *shape: int) -> Buffer:
        return self._operands.cache(self._storage(operand), *shape)

    def norm(self) -> Norm | None:
        return (self.vector("x_norm"), self.attribute("x_norm_epsilon")) if self.has("x_norm") else None

    def few_rows(self) -> FewRows | None:
        config = self._program.kind.few_rows(self._op)
        if config is None:
            return None
        self._check_forms()
        return FewRows(self.max_tokens, self.dtype, self.device, config, self.scales("x"), self.deterministic)

    def product(self, y: Buffer, peers: PeerRows = HERE) -> list[Command]:
        site = self._site(y, self.attribute("activation"), self.scales("y"))
        return self._implement(replace(site, peers=peers))

    def qkv_product(self, tokens: NewTokens) -> list[Command]:
        features, *_ = static_dims(self._op.inputs["weight"])
        qkv = Buffer(f"{self.name}.qkv", self.dtype, (self.extents("y")[0], features))
        return self._implement(replace(self._site(qkv, "none", None), tokens=tokens))

    def grouped_product(self, y: Buffer, x: Buffer, experts: ExpertChoice, activation: str) -> list[Command]:
        site = GroupedSite(
            y=y,
            x=x,
            weight=self.weight(),
            groups=self.rows("groups"),
            dtype=self.dtype,
            rows=self.num_rows("ids"),
            max_rows=self.max_tokens,
            max_sorted_rows=self.symbols[str(self.extents("ids")[0])] * experts.top_k,
            experts=experts,
            activation=activation,
            bias=self.optional_vector("bias"),
        )
        return site.implement(self._program.choose(site), self.device)

    def _site(self, y: Buffer, activation: str, y_scales: RowScales | None) -> DenseSite:
        rows = self.extents("x")[0]
        assert isinstance(rows, str)
        self._check_forms()
        return DenseSite(
            y=y,
            weight=self.weight(),
            x=self.rows("x"),
            dtype=self.dtype,
            rows=self._num_rows(rows),
            max_rows=min(self.max_tokens, self.symbols[rows]),
            activation=activation,
            residual=self.optional_rows("residual"),
            added=self.optional_rows("added"),
            bias=self._operands.bias(self._op.inputs["bias"]) if self.has("bias") else None,
            x_scales=self.scales("x"),
            y_scales=y_scales,
            ordered=self.deterministic,
        )

    def _implement(self, site: DenseSite) -> list[Command]:
        first: list[Command] = []
        if form_of(site.weight).is_dequantized and not self.deterministic and self._dequantizes_once(site):
            dequantized = Buffer(f"{self.name}.dequantized", self.dtype, site.weight.values.shape)
            first = [dequantize(dequantized, site.weight)]
            site = replace(site, weight=WeightBuffers(dequantized))
        return [*first, *site.implement(self._program.choose(site), self.device)]

    def _dequantizes_once(self, site: DenseSite) -> bool:
        """Whether a separate kernel dequantizes the weight once, instead of each tile of the product."""
        size = size_class(self._program.kind.bucket)
        has_all_rows = site.rows == symbol(NUM_TOKENS)
        return (has_all_rows and self.has_many_rows) or not site.tile_configs(size, self.device)

    def refuse(self, problem: str) -> NoReturn:
        raise BuildError(f"{self.name}: {problem}")

    def _check_forms(self) -> None:
        """Raise BuildError if no kernel multiplies rows of this type by a weight of this type."""
        dtype, rows = self._op.inputs["weight"].dtype, rows_of(self._op)
        assert dtype is not None
        if rows is None:
            return
        weight = DTYPE_NAMES[dtype]
        if rows != weight or rows not in BYTE_PRODUCTS:
            pairs = " and ".join(f"{both} by {both}" for both in BYTE_PRODUCTS)
            self.refuse(
                f"its activations are rounded to {rows} and its weight is {weight}; the GPU kernels multiply {pairs}: "
                "build with --qformat fp8_rowwise or int8_sq"
            )
        if self.device.arch != TILED_ARCH:
            self.refuse(
                f"products of {rows} activations are for {TILED_ARCH}, not {self.device.arch}: build with --qformat "
                "int8_wo"
            )

    def _storage(self, operand: str) -> ir.Value:
        return self._program.links.storage(self._op.inputs[operand])
