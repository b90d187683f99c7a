"""
Sampling parameters of requests, and log probabilities of tokens; csrc/sampling/*.h state the contract.
"""

from collections.abc import Iterable, Sequence
import enum

class SamplingParams:
    """
    The sampling parameters of a request; sampling_params.h explains the fields.
    """

    def __init__(self) -> None: ...
    @property
    def end_ids(self) -> list[int]: ...
    @end_ids.setter
    def end_ids(self, arg: Iterable[int], /) -> None: ...
    @property
    def stop_token_ids(self) -> list[int]: ...
    @stop_token_ids.setter
    def stop_token_ids(self, arg: Iterable[int], /) -> None: ...
    @property
    def seed(self) -> int: ...
    @seed.setter
    def seed(self, arg: int, /) -> None: ...
    @property
    def max_tokens(self) -> int: ...
    @max_tokens.setter
    def max_tokens(self, arg: int, /) -> None: ...
    @property
    def min_tokens(self) -> int: ...
    @min_tokens.setter
    def min_tokens(self, arg: int, /) -> None: ...
    @property
    def ignore_eos(self) -> bool: ...
    @ignore_eos.setter
    def ignore_eos(self, arg: bool, /) -> None: ...
    @property
    def bad_words(self) -> list[list[int]]: ...
    @bad_words.setter
    def bad_words(self, arg: Sequence[Sequence[int]], /) -> None: ...
    @property
    def logit_bias(self) -> list[tuple[int, float]]: ...
    @logit_bias.setter
    def logit_bias(self, arg: Sequence[tuple[int, float]], /) -> None: ...
    @property
    def allowed_token_ids(self) -> list[int] | None: ...
    @allowed_token_ids.setter
    def allowed_token_ids(self, arg: Sequence[int] | None, /) -> None: ...
    @property
    def logprobs(self) -> int | None: ...
    @logprobs.setter
    def logprobs(self, arg: int | None, /) -> None: ...
    @property
    def prompt_logprobs(self) -> int | None: ...
    @prompt_logprobs.setter
    def prompt_logprobs(self, arg: int | None, /) -> None: ...
    def violations(self, vocab_size: int) -> list[str]:
        """
        A sentence for everything wrong with the parameters; empty if nothing is.
        """

    def __getattr__(self, name: str) -> float:
        """A number of trtllm_lite/request_fields, by its name."""

    def __setattr__(self, name: str, value: object) -> None: ...

MAX_STOP_TOKENS: int
"""The most entries of a list of SamplingParams."""

MAX_LOGIT_BIAS_ENTRIES: int
"""The most entries of a list of SamplingParams."""

MAX_BAD_WORDS: int
"""The most entries of a list of SamplingParams."""

MAX_BAD_WORD_LENGTH: int
"""The most tokens of a bad word."""

class RowLogprobs:
    """Log-probabilities at one position."""

    @property
    def logprob(self) -> float:
        """The chosen token's log probability."""

    @property
    def rank(self) -> int:
        """The chosen token's rank: 1 is the most likely."""

    @property
    def top(self) -> list[tuple[int, float]]:
        """The most likely tokens, best first."""

class EarlyStopping(enum.Enum):
    """
    The rule by which a search with enough finished sequences ends: see beam_search.h.
    """

    FALSE = 0

    TRUE = 1

    NEVER = 2

class BeamSearchParams:
    """The parameters of a beam search, besides SamplingParams."""

    def __init__(self) -> None: ...
    @property
    def num_beams(self) -> int: ...
    @num_beams.setter
    def num_beams(self, arg: int, /) -> None: ...
    @property
    def length_penalty(self) -> float: ...
    @length_penalty.setter
    def length_penalty(self, arg: float, /) -> None: ...
    @property
    def early_stopping(self) -> EarlyStopping: ...
    @early_stopping.setter
    def early_stopping(self, arg: EarlyStopping, /) -> None: ...
    def violations(self, params: SamplingParams, vocab_size: int) -> list[str]:
        """
        A sentence for everything wrong with a search of these parameters; empty if nothing is.
        """
