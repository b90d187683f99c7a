"""Defines the markers around the thoughts of a model before its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Thoughts:
    """Markers of thoughts: any of ``starts`` begins them; one text from each entry of ``ends``, in order, ends them.

    Without ``starts``, the thoughts begin where the text begins.
    """

    starts: tuple[str, ...]
    ends: tuple[tuple[str, ...], ...]

    @cached_property
    def native(self) -> Any:
        """The ``_core.Thoughts`` of these markers."""
        return core().Thoughts(self.starts, self.ends)

    def are_likely(self, prompt: str, tokenizer: Tokenizer) -> bool:
        """Whether a model probably writes these markers: a token is a start marker, or the prompt contains one."""
        return any(
            start in prompt or len(tokenizer.encode(start, add_special_tokens=False)) == 1 for start in self.starts
        )

    def behind(
        self, prompt_ids: NDArray[np.int32], tokenizer: Tokenizer | None, end_ids: Sequence[int]
    ) -> "Thoughts | None":
        """The thoughts of a text that follows a prompt, int32[prompt_len]; None if the prompt has ended them.

        They have no ``starts`` if the prompt has begun them, as some chat templates do. Only markers after the prompt's
        last end token, or other added token that is not part of a marker, count. Raises ArgumentError without a
        tokenizer.
        """
        if tokenizer is None:
            raise ArgumentError("reasoning_end_str needs a tokenizer, and this engine has no tokenizer: leave it out")
        turn = tokenizer.decode_all(prompt_ids[self._turn_begin(prompt_ids, tokenizer, end_ids) :].tolist())
        begin = max((turn.rfind(start) for start in self.starts), default=-1)
        if self._has_end(turn[max(begin, 0) :]):
            return None
        return self if begin < 0 else replace(self, starts=())

    def _turn_begin(self, prompt_ids: NDArray[np.int32], tokenizer: Tokenizer, end_ids: Sequence[int]) -> int:
        """The position where the prompt's last turn begins, which the generated text continues."""
        markers = [*self.starts, *(text for texts in self.ends for text in texts)]
        places = np.flatnonzero(np.isin(prompt_ids, [*tokenizer.added_tokens, *end_ids]))
        for place in places[::-1].tolist():
            token = int(prompt_ids[place])
            name = tokenizer.added_tokens.get(token, "")
            if token in end_ids or (name.strip() and not any(name in marker for marker in markers)):
                return int(place) + 1
        return 0

    def _has_end(self, text: str) -> bool:
        for texts in self.ends:
            found = [place + len(end) for end in texts if (place := text.find(end)) >= 0]
            if not found:
                return False
            text = text[min(found) :]
        return True
