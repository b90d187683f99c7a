"""Counts the tokens of a request."""

from collections.abc import Sequence
from typing import Any

from trtllm_lite.runtime.api.generation import Generation
from trtllm_lite.serve.http.messages import Request


def usage_of(
    request: Request, generations: Sequence[Generation], num_generated: int, num_reasoning: int | None = None
) -> dict[str, Any]:
    """OpenAI's ``usage`` of a request, whose numbers go to the access log as well.

    ``num_reasoning`` of the ``num_generated`` tokens are reasoning; None if reasoning is not separated.
    """
    num_prompt = sum(len(generation.handles[0].request.prompt_ids) for generation in generations)
    timings = [generation.handles[0].timings for generation in generations]
    num_cached = sum(found.num_cached_tokens for found in timings if found is not None)
    request.num_prompt_tokens, request.num_generated_tokens = num_prompt, num_generated
    usage: dict[str, Any] = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }
    if num_reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": num_reasoning}
    return usage
