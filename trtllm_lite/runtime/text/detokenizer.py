"""Incremental detokenization: the pieces of text that each new token adds, for any tokenizer.

Decoding token by token loses spaces (a decoder strips the first one it sees) and splits characters whose bytes are
spread over tokens. The detokenizer therefore decodes a window, which starts with the tokens of the last piece as
context, and releases only text that later tokens cannot change.
"""

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A UTF-8 character has at most 4 bytes and a token at least one: an incomplete character spans at most 3 tokens.
_MAX_INCOMPLETE_TOKENS = 3
_MAX_HELD_TOKENS = 16
# A longer run of broken bytes is no incomplete character, and is released as it is.
_MAX_UNSETTLED_TOKENS = 64
_MAX_SILENT_TOKENS = 16
_PROMPT_CONTEXT = 8
_LONGEST_PROMPT_CONTEXT = _PROMPT_CONTEXT + _MAX_INCOMPLETE_TOKENS


class IncrementalDetokenizer:
    """Turns a stream of token ids into pieces of text whose concatenation is the text of all of them.

    ``decode`` maps token ids to text, with U+FFFD for broken UTF-8. ``prompt_ids`` give the context that decides
    whether the text starts with a space; their own text is never part of a piece. The work for each token is bounded,
    whatever came before.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt_ids: Sequence[int] = ()) -> None:
        self._decode = decode
        # The window is _context + _held; _released is the prefix of its text that the prompt or earlier pieces hold.
        self._context = _prompt_context(decode, [int(token) for token in prompt_ids[-_LONGEST_PROMPT_CONTEXT:]])
        self._num_silent = 0  # how many tokens at the end of the context have printed nothing
        self._held: list[int] = []
        self._released = decode(self._context)

    def push(self, token: int) -> str:
        """Add a token; returns the text that is certain now ("" while a character is incomplete)."""
        self._held.append(token)
        text = self._window_text()
        if not text.endswith(REPLACEMENT):
            return self._release(text, len(self._held))
        if len(self._held) > _MAX_HELD_TOKENS:
            return self._release_settled(text)
        return ""

    def finish(self) -> str:
        """The text that is still held back, with U+FFFD for characters that never became complete."""
        if not self._held:
            return ""
        return self._release(self._window_text(), len(self._held))

    def _window_text(self) -> str:
        """The text of the window, without the context if later bytes have changed the context's text."""
        text = self._decode(self._context + self._held)
        if text.startswith(self._released) or text.endswith(REPLACEMENT):
            return text
        # The prompt may end inside a character, which is complete now.
        self._released = self._released.rstrip(REPLACEMENT)
        if text.startswith(self._released):
            return text
        self._forget_context()
        return self._decode(self._held)

    def _release(self, text: str, num_tokens: int) -> str:
        """Release the new part of ``text``, the window's; the first ``num_tokens`` held tokens have become text."""
        if not text.startswith(self._released):
            self._forget_context()
            text = self._decode(self._held[:num_tokens])
        piece = text[len(self._released) :]
        done, self._held = self._held[:num_tokens], self._held[num_tokens:]
        if piece:
            # Tokens that print nothing (special ones) give no context: a decoder would strip a space after them.
            self._context, self._num_silent = done, 0
        else:
            self._add_silent(done)
        self._released = self._decode(self._context)
        return piece

    def _forget_context(self) -> None:
        self._context, self._num_silent, self._released = [], 0, ""

    def _add_silent(self, tokens: list[int]) -> None:
        """Keep as context the last tokens that printed something, and a few tokens after them that printed nothing."""
        self._context += tokens
        self._num_silent += len(tokens)
        first = len(self._context) - self._num_silent
        self._num_silent = min(self._num_silent, _MAX_SILENT_TOKENS)
        del self._context[first : len(self._context) - self._num_silent]

    def _release_settled(self, text: str) -> str:
        """In a long run of broken bytes, release all but the bytes that may belong to an incomplete last character."""
        for end in range(len(self._held) - _MAX_INCOMPLETE_TOKENS, 0, -1):
            head = self._decode(self._context + self._held[:end])
            if head + self._decode(self._held[end:]) == text:
                return self._release(head, end)
        return self._release(text, len(self._held)) if len(self._held) > _MAX_UNSETTLED_TOKENS else ""


def _prompt_context(decode: Callable[[Sequence[int]], str], prompt_ids: list[int]) -> list[int]:
    """The last tokens of the prompt, beginning at the start of a character."""
    shortest = min(_PROMPT_CONTEXT, len(prompt_ids))
    for length in range(shortest, min(shortest + _MAX_INCOMPLETE_TOKENS, len(prompt_ids)) + 1):
        context = prompt_ids[len(prompt_ids) - length :]
        if not decode(context).startswith(REPLACEMENT):
            break
    return context
