"""The argument of ``lower(op)`` in ``plugins/<op>/cuda.py``: one operator of a program, with buffers as operands.

``lower`` returns the commands that compute the operator. Operands have the names of ``schema.toml``. Passes for GPUs
add operands that the schemas do not have. A product also has the operands of operators that its kernel computes in its
prologue or epilogue:

- ``x_norm``: the weight of an RMS norm of x; ``x_norm_epsilon`` is an attribute (Linear, GatedLinear, PagedAttention,
  Router, GroupedGatedLinear);
- ``residual``: rows that are added to the result (Linear, GroupedLinear);
- ``norm_weight``: the weight of an RMS norm of the result. ``y`` is then the norm, whose attributes the product has
  too, and ``sum`` the result itself (GroupedLinear);
- PagedAttention has ``x``, ``weight`` and maybe ``bias`` instead of ``qkv`` where its kernel may compute these rows.

Router chooses experts in programs of many rows, and has outputs that GroupedGatedLinear and GroupedLinear read
(``chosen_experts.cuh``): ``places`` and ``groups``. In programs of a few rows it has only the output ``scores``, from
which these two choose (``chosen_list.cuh``): they have the attributes and operands of Router for that, and nothing else
has ``ids`` and ``shares`` in memory; GroupedGatedLinear multiplies by the shares. An operator that chooses has, in
decode programs, the ``slots`` of CacheSlots, by which it recognises padding rows, and, if a rank has only some of the
experts, the state ``ranks``. The first that does has the state ``tally``. Router's weight is the sum of two 16-bit
matrices, its bias is ``score_bias``. All three operators have the attributes ``experts``, ``local_experts``,
``moe_tp_size`` and ``num_shared``.

Programs with adapters have LowRank before a product. LowRank's result is the operand ``added`` of the product (Linear,
GatedLinear), or its ``residual`` if LowRank takes over the product's residual. LowRank has the step inputs
``adapter_rows`` and ``adapter_ends``.

Rows of bytes have the attributes ``<operand>_type`` (a key of row_scales.ROW_TYPES) and ``<operand>_scale``. If
``<operand>_row_scales`` is 1, each row has its own scale, and the attribute is the least scale; if these scales are in
memory, the operand ``<operand>_scale`` holds them. Products with an attribute ``x_type`` read bytes or, if there are at
most 16 rows, 16-bit elements, which they quantize. An output ``y`` with ``y_type`` is quantized by its operator.

Every program of a decoder begins with CacheSlots and ends with Sample (in a pipeline, only in the last stage). Other
operators have operands of these two:

- Embedding has the step input ``token_slots`` and the state ``last_tokens``, where Sample stores tokens: a token whose
  slot is not negative is read from that slot of ``last_tokens``;
- with several ranks, CacheSlots, Embedding, AllReduce and AllGather have the states ``ranks`` (``rank_table.cuh``) and
  ``rank_flags``, and AllReduce also ``rank_inbox`` and ``rank_turns`` (``rank_inbox.cuh``). AllReduce may have the
  ``residual`` and ``weight`` of the RmsNorm after it, whose outputs it then makes. If ranks communicate by NCCL, only
  Embedding has ``ranks``;
- Linear may store its rows on other ranks (``peer_rows.cuh``). If it and the AllReduce after it have the state
  ``rank_sums``, it stores rows on the ranks that add them up. If it only has ``ranks``, it stores them on the first
  rank next to those of the others, and the AllGather after it has ``in_place`` and waits for them;
- PagedAttention, LatentAttention, PagedLoad and PagedStore have the ``slots`` [cache groups, num_tokens] of CacheSlots:
  the place of each token in the paged cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from ..launch import Buffer, Command, Device, Extent, WeightBuffers
from .few_rows import FewRows
from .peer_rows import HERE, PeerRows
from .row_scales import RowScales

if TYPE_CHECKING:
    from ..low_rank.cuda import AdapterMatrices
    from ..paged_attention.new_tokens import NewTokens
    from .grouped import ExpertChoice

Norm: TypeAlias = tuple[Buffer, float]  # (weight, epsilon)


class Lowering(Protocol):
    """An operator being lowered into a program. Methods raise BuildError if the device cannot do what is asked."""

    name: str
    device: Device
    dtype: str  # of activations
    decode: bool  # whether each sequence has one new token, and drafts after it
    deterministic: bool  # whether a row's result must be the same in every program
    max_tokens: int  # the most tokens of a step that runs the program
    has_many_rows: bool  # whether such a step has so many tokens that kernels of their own convert bytes to 16 bits
    max_seq_len: int
    max_draft_len: int  # the most draft tokens of a sequence in a step
    max_decode_seqs: int  # the most sequences with new tokens in a decode step, padding included
    tokens_per_block: int
    block_bytes: int  # from a block of the KV cache to the next
    symbols: Mapping[str, int]  # the upper bound of each symbol
    num_ranks: int  # ranks among which layers are divided
    collective: int  # number of this collective, if not all ranks take part in it

    def has(self, operand: str) -> bool:
        """Whether the optional input or output ``operand`` is present."""

    def attribute(self, name: str) -> Any:
        """The value of an attribute."""

    def extents(self, operand: str) -> tuple[int | str, ...]:
        """The shape of an operand: integers and symbols."""

    def num_rows(self, operand: str) -> Extent:
        """The number of rows of an operand in a step."""

    def step_input(self, operand: str) -> Buffer:
        """An input of the step."""

    def state(self, operand: str) -> Buffer:
        """Memory that is kept between steps."""

    def scales(self, operand: str) -> RowScales | None:
        """The scales of an operand's rows of bytes; None if its rows are 16-bit."""

    def rows(self, operand: str) -> Buffer:
        """Activations, or another result of an earlier operator."""

    def optional_rows(self, operand: str) -> Buffer | None:
        """The activations of an operand that may be absent."""

    def new(self, output: str, dtype: str | None = None) -> Buffer:
        """Memory for an output: of ``dtype`` if given, of bytes if it has scales, else of the activations' type."""

    def result(self, output: str) -> Buffer:
        """Like :meth:`new`, for operators that can write float32: a module's first output, and rows that become it."""

    def output(self, output: str) -> Buffer:
        """Memory for an output that the executor reads after the step."""

    def place(self, output: str, buffer: Buffer) -> Buffer:
        """Use existing memory, ``buffer``, for an output."""

    def matrix(self, operand: str) -> Buffer:
        """A weight matrix, row-major, of the activations' type."""

    def weight(self) -> WeightBuffers:
        """The matrix ``weight`` of a product, in whatever format it is stored."""

    def indices(self, operand: str, below: int) -> Buffer:
        """A weight of int32 indices, all of them from 0 up to ``below``."""

    def vector(self, operand: str) -> Buffer:
        """A float32 weight."""

    def optional_vector(self, operand: str) -> Buffer | None:
        """A float32 weight that may be absent."""

    def adapters(self, in_features: int, widths: tuple[int, ...]) -> AdapterMatrices:
        """The adapter slots for LowRank's projections, which have ``widths`` outputs."""

    def cache(self, operand: str, *shape: int) -> Buffer:
        """A paged cache of a layer or of features; ``shape`` is the shape of a block."""

    def norm(self) -> Norm | None:
        """The RMS norm of x that this operator computes in its prologue."""

    def few_rows(self) -> FewRows | None:
        """How a GEMV kernel streams ``weight``; None if there are many rows or no kernel fits."""

    def product(self, y: Buffer, peers: PeerRows = HERE) -> list[Command]:
        """y = the product of ``x`` and ``weight`` with bias, residual and adapters.

        Its kernel is the one that is fastest for many rows. y is stored where ``peers`` says.
        """

    def qkv_product(self, tokens: NewTokens) -> list[Command]:
        """Compute ``tokens`` from the product of ``x`` and ``weight``, by the kernel that is fastest for many rows."""

    def grouped_product(self, y: Buffer, x: Buffer, experts: ExpertChoice, activation: str) -> list[Command]:
        """y = the product of ``x``, rows that are sorted by expert, and ``weight``, by the fastest kernel.

        Other operands are ``groups``, which lists these rows, and maybe ``bias``.
        """

    def refuse(self, problem: str) -> NoReturn:
        """Raise BuildError, which names the operator."""
