"""Builds the LM head of a drafting head that knows only some tokens of its model (EAGLE-3): other logits are low.

A product makes logits of the known tokens, followed by some padding rows; the logits of all tokens are then looked up
among these, so that no weights are read for tokens that are never drafted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.errors import ConvertError
from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.weight_expression import Read, SourceTensor, WeightExpression

_NEVER = -1e30  # the logit of a token that a head does not know: finite, as logits have to be
_MULTIPLE = 8  # kernels take a multiple of this many rows


@dataclass(frozen=True)
class HeadOfKnownTokens:
    """Logits of all ``vocab_size`` tokens; ``weight`` is [known, hidden].

    ``offsets`` is int64 [known]: known token i is token i + offsets[i].
    """

    weight: WeightExpression
    offsets: SourceTensor
    vocab_size: int

    @property
    def linear(self) -> Linear:
        """The product, with padding rows after those of the known tokens."""
        known = self.offsets.shape[0]
        rows = (known // _MULTIPLE + 1) * _MULTIPLE
        return Linear(_WithRows(self.weight, rows), _Logits(known, rows))

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """float32 [batch, seq, vocab]."""
        graph = context.graph
        known = self.linear(graph, x, "lm_head")
        places = graph.indices(_Places(self.offsets, self.vocab_size), "lm_head.places")
        return graph.op("Gather", [known, places], "lm_head.of_all_tokens", {"axis": -1})


@dataclass(frozen=True)
class _WithRows(WeightExpression):
    """``operand`` with rows of zeros appended, ``rows`` in all."""

    operand: WeightExpression
    rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.operand.shape[1:])

    def sources(self) -> Iterator[SourceTensor]:
        yield from self.operand.sources()

    def evaluate(self, read: Read) -> NDArray:
        own = self.operand.evaluate(read)
        result = np.zeros(self.shape, own.dtype)
        result[: len(own)] = own
        return result


@dataclass(frozen=True)
class _Logits(WeightExpression):
    """float32 [rows], added to logits: 0 for ``known`` tokens, and a very low value for padding rows."""

    known: int
    rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows,)

    def sources(self) -> Iterator[SourceTensor]:
        return iter(())

    def evaluate(self, read: Read) -> NDArray:
        del read
        return np.where(np.arange(self.rows) < self.known, 0, _NEVER).astype(np.float32)


@dataclass(frozen=True)
class _Places(WeightExpression):
    """int32 [vocab]: the number of each token among the known ones; for an unknown token, that of a padding row."""

    offsets: SourceTensor
    vocab_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.vocab_size,)

    def sources(self) -> Iterator[SourceTensor]:
        yield self.offsets

    def evaluate(self, read: Read) -> NDArray:
        offsets = self.offsets.evaluate(read)
        tokens = np.arange(len(offsets)) + offsets.astype(np.int64)
        if len(np.unique(tokens)) != len(tokens) or np.min(tokens) < 0 or np.max(tokens) >= self.vocab_size:
            raise ConvertError(
                f"expected {self.offsets.name} to name different tokens below {self.vocab_size}: download the head "
                "again"
            )
        places = np.full(self.vocab_size, len(tokens), np.int32)
        places[tokens] = np.arange(len(tokens))
        return places
