"""The body of /v1/completions."""

from typing import Any, ClassVar

from trtllm_lite.serve.bodies.prompts import PromptField
from trtllm_lite.serve.bodies.sampling import NumSequences, SamplingFields

DEFAULT_MAX_TOKENS = 16  # OpenAI's default


class CompletionBody(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """``prompt``: a string, token ids, or a list of either; ``logprobs``: how many likely tokens to report."""

    PROMPTS: ClassVar = PromptField("prompt", "prompts", 1024)
    prompt: str | list[Any]
    best_of: NumSequences | None = None
    echo: bool = False
    logprobs: int | None = None
    add_special_tokens: bool = True
