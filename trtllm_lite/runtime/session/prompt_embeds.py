"""Defines prompts whose tokens are, all or in part, rows of embeddings."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.printable import one_line
from trtllm_lite.common.vocabulary import TOKEN_ROWS, UINT8
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.modules import Port
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.core import core

_DIGEST_BYTES = 16
_KEY = secrets.token_bytes(_DIGEST_BYTES)  # nobody outside can look for rows of equal digests
_LARGEST = {"float32": float(np.finfo(np.float32).max), "float16": 65504.0, "bfloat16": 3.3895313892515355e38}
_LARGEST[UINT8] = 255.0


@dataclass(eq=False)
class PromptEmbeds:
    """``rows`` take the place of the tokens at ``positions`` int32[n], which ascend.

    They are embeddings, float32[n, hidden_size], or uint8[n, size] for an engine that makes embeddings of bytes.
    ``digests`` has 16 bytes for each row, by which prefixes are told apart: by default those of the rows' content.
    """

    positions: NDArray[np.int32]
    rows: NDArray[np.float32 | np.uint8]
    digests: bytes | None = None
    _native: dict[Port, Any] = field(default_factory=dict, init=False, repr=False)

    def to_native(self, manifest: Manifest) -> Any:
        """The ``_core.PromptRows`` for an engine, in the type of its activations, or bytes as they are.

        Raises ArgumentError if the engine takes no rows, rows of another type or size, or no numbers as large.
        """
        ports = [port for port in manifest.module.inputs if port.name == TOKEN_ROWS]
        if not ports:
            raise ArgumentError(
                "prompt_embeds is given, and this engine takes tokens alone: build it with --enable_prompt_embeds, or "
                "give LLM enable_prompt_embeds=True"
            )
        (port,) = ports
        if port not in self._native:
            takes, given = (UINT8 if dtype == UINT8 else "floats" for dtype in (port.dtype, self.rows.dtype.name))
            if takes != given:
                raise ArgumentError(f"prompt_embeds has rows of {given}: expected {takes}, which this engine takes")
            if self.rows.shape[1] != port.size:
                what = "the engine's size of rows" if takes == UINT8 else "the model's hidden size"
                raise ArgumentError(
                    f"prompt_embeds has rows of {self.rows.shape[1]} elements: expected {what}, {port.size}"
                )
            largest, most = float(np.abs(self.rows).max()), _LARGEST[port.dtype]
            if largest > most:
                raise ArgumentError(
                    f"prompt_embeds has an element of {largest:g}, above {most:g}, the largest {port.dtype}: scale the "
                    "rows as the model's embeddings are"
                )
            rows = _STORED[port.dtype](self.rows)
            of_content = (blake2b(row, key=_KEY, digest_size=_DIGEST_BYTES).digest() for row in rows)
            digests = b"".join(of_content) if self.digests is None else self.digests
            self._native[port] = core().PromptRows(self.positions, rows, digests)
        return self._native[port]


def split_embeds(name: str, prompt: Any, vocab_size: int) -> tuple[Any, PromptEmbeds | None]:
    """The token ids of a dictionary with ``prompt_embeds``, and its embeddings; any other prompt unchanged.

    A token id from ``vocab_size`` on stands for a row: vocab_size + i for row i. Without ``prompt_token_ids`` the rows
    are the prompt. In the ids that are returned, 0 takes the place of such tokens. Raises ArgumentError for rows that
    are no finite numbers, and ids of rows that are missing.
    """
    if not isinstance(prompt, Mapping):
        return prompt, None
    rows, given = _rows(name, prompt["prompt_embeds"]), prompt.get("prompt_token_ids")
    try:
        ids = vocab_size + np.arange(len(rows)) if given is None else np.array(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{name}: prompt_token_ids is no list of token ids ({one_line(str(error))})") from error
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        return ids, None  # whoever checks the ids says what is wrong with them
    positions = np.flatnonzero(ids >= vocab_size)
    wanted = ids[positions] - vocab_size
    if wanted.size and wanted.max() >= len(rows):
        raise ArgumentError(
            f"{name} holds the token id {vocab_size + wanted.max()}, which stands for row {wanted.max()} of "
            f"prompt_embeds: expected at most {vocab_size + len(rows) - 1}, because it has {len(rows)} rows"
        )
    unused = np.setdiff1d(np.arange(len(rows)), wanted)
    if unused.size:
        raise ArgumentError(
            f"{name}: no token id stands for row {unused[0]} of prompt_embeds: expected {vocab_size + unused[0]} among "
            "prompt_token_ids, or no prompt_token_ids if the rows are the prompt"
        )
    ids[positions] = 0
    return ids, PromptEmbeds(positions.astype(np.int32), rows[wanted])


def _rows(name: str, value: Any) -> NDArray[np.float32 | np.uint8]:
    try:
        rows = np.asarray(value)
        numbers = rows.astype(np.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ArgumentError(
            f"{name}: prompt_embeds is no array of numbers ({one_line(str(error))}): expected float32[tokens, "
            "hidden_size]; of a tensor of torch pass tensor.detach().float().cpu().numpy()"
        ) from error
    is_bytes = rows.dtype == np.uint8
    if numbers.ndim != 2 or 0 in numbers.shape or not (is_bytes or np.issubdtype(rows.dtype, np.floating)):
        raise ArgumentError(
            f"{name}: prompt_embeds has shape {rows.shape} and dtype {rows.dtype}: expected floats [tokens, "
            "hidden_size]"
        )
    if is_bytes:
        return rows.copy()
    if not np.isfinite(numbers).all():
        raise ArgumentError(f"{name}: prompt_embeds has elements that are not finite: expected finite numbers")
    return numbers


def _bfloat16(rows: NDArray[np.float32]) -> NDArray[np.uint8]:
    """``rows`` rounded to the nearest bfloat16, halves to even, as bytes."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).view(np.uint8)


_STORED: Mapping[str, Callable[[NDArray[Any]], NDArray[np.uint8]]] = {
    UINT8: np.ascontiguousarray,
    "float32": lambda rows: np.ascontiguousarray(rows).view(np.uint8),
    "float16": lambda rows: rows.astype(np.float16).view(np.uint8),
    "bfloat16": _bfloat16,
}
