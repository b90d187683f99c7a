"""Defines the modules of an engine, and the ports through which rows flow from module to module."""

from dataclasses import dataclass
from math import prod
from typing import Annotated

from trtllm_lite.common.vocabulary import (
    DRAFTING_HEAD,
    LOGITS,
    MAX_EXTENT,
    MODULE_KINDS,
    MODULE_USES,
    ModuleUse,
    num_bytes,
)
from trtllm_lite.engine.plan import DTypeName, Name
from trtllm_lite.engine.records import Native, OneOf, Range


@dataclass(frozen=True)
class Port:
    """Rows that a module takes from another module, or makes for another module or for the caller of a step.

    ``shape`` is that of the plan's tensor: [num_tokens, size] for a row of each token of a step, [num_logits, size] or
    [num_seqs, size] for rows of logits or sequences. Rows of the shape [num_blocks, tokens_per_block, size] are kept in
    the paged cache of the module that makes them, for as long as the sequence lives.
    """

    name: Name
    dtype: DTypeName
    shape: Annotated[tuple[int | str, ...], Native("std::vector<Dim>", "read_shape")]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join(map(str, self.shape))}]"

    @property
    def size(self) -> int:
        """Elements of a row."""
        size = self.shape[-1]
        assert isinstance(size, int)
        return size

    @property
    def is_cached(self) -> bool:
        """Whether the rows are kept in the paged cache."""
        return self.shape[:1] == ("num_blocks",)

    @property
    def block_bytes(self) -> int:
        """Bytes that rows in the paged cache take in each block."""
        return num_bytes(self.dtype, (prod(extent for extent in self.shape[1:] if isinstance(extent, int)),))


@dataclass(frozen=True)
class Module:
    """A part of a model that an engine runs: ``kind`` is one of ``MODULE_KINDS``.

    A step returns rows of the first of the ``outputs`` to its caller. ``caches`` are the names of the cache groups that
    the module owns. ``tokens_per_row`` counts the tokens of a sequence for each row that a vision tower makes of them;
    0 in modules of other kinds.
    """

    name: Name
    kind: Annotated[str, OneOf("ModuleKind", MODULE_KINDS)]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    caches: tuple[Name, ...]
    tokens_per_row: Annotated[int, Range(0, MAX_EXTENT)] = 0

    @property
    def use(self) -> ModuleUse:
        """What the module makes, and how to ask for it."""
        return MODULE_USES[self.kind]

    @property
    def generates(self) -> bool:
        """Whether the module makes logits of tokens to come, for a scheduler to draw from; an encoder makes none."""
        return self.use.output == LOGITS

    @property
    def drafts(self) -> bool:
        """Whether the module drafts from rows that another one keeps."""
        return self.kind == DRAFTING_HEAD

    @property
    def kept(self) -> tuple[Port, ...]:
        """The outputs that are kept in the module's own paged cache."""
        return tuple(port for port in self.outputs if port.is_cached)
