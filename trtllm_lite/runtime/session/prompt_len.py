"""Checks the lengths of prompts and outputs against an engine's limits."""

from trtllm_lite.errors import LimitError
from trtllm_lite.runtime.session.limits import RunnerLimits


def check_prompt_len(name: str, prompt_len: int, limits: RunnerLimits) -> None:
    """Raise LimitError if a prompt, ``name`` in messages, is too long; prompts are never truncated here."""
    if prompt_len > limits.max_input_len:
        raise LimitError(
            f"{name} has {prompt_len} tokens, which exceeds max_input_len {limits.max_input_len}: shorten it, or build "
            f"the engine with --max_input_len {prompt_len}"
        )
    if prompt_len >= limits.max_seq_len:
        raise LimitError(
            f"{name} has {prompt_len} tokens, which leaves no room for an answer within max_seq_len "
            f"{limits.max_seq_len}: shorten it, or build the engine with a larger --max_seq_len"
        )


def output_len(name: str, prompt_len: int, wanted: int | None, limits: RunnerLimits) -> int:
    """The tokens that the prompt ``name`` may generate: ``wanted``, or as many as fit if it is None.

    Raises LimitError if ``wanted`` is more than fits.
    """
    room = {
        "max_seq_len": (limits.max_seq_len - prompt_len, "build the engine with a larger --max_seq_len"),
        "max_output_len": (limits.max_output_len, "load the engine with a larger max_output_len"),
        "the KV cache": (limits.cache_len - prompt_len, "load the engine with a larger KV cache"),
    }
    bounded_by, (most, remedy) = min(room.items(), key=lambda item: item[1][0])
    if most < 1 or (wanted is not None and wanted > most):
        bounds = {"max_output_len": limits.max_output_len, "max_seq_len": limits.max_seq_len}
        raise LimitError(
            f"{name} has {prompt_len} tokens and asks for {wanted or 1} more, which exceeds {bounded_by} "
            f"({bounds.get(bounded_by, limits.cache_len)} tokens): ask for at most {max(most, 0)}, shorten the prompt, "
            f"or {remedy}"
        )
    return most if wanted is None else wanted
