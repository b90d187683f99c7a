"""Names that TensorRT-LLM's ModelRunner knows and this runtime does not support (yet), and what to do instead.

A name with a value that asks for nothing (``num_beams=1``) is accepted, so that old calls keep working; any other value
is an error that says what replaces it, and so is a name that nobody knows.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_lite.errors import ArgumentError


@dataclass(frozen=True)
class Unsupported:
    """``neutral`` values are accepted and change nothing."""

    remedy: str
    neutral: tuple[Any, ...] = (None,)


_BEAMS = Unsupported("beam search is not supported yet; sampling (temperature, top_k, top_p) is", (None, 1))
_PENALTY = "repetition penalties are not supported yet; leave it out"
_LORA = "LoRA adapters are not supported yet; merge the adapter into the checkpoint before `trtllm-lite convert`"
_GPU_ONLY = "it concerns GPUs, and this engine runs on a CPU; leave it out"

FROM_DIR: Mapping[str, Unsupported] = {
    "lora_dir": Unsupported(_LORA),
    "lora_ckpt_source": Unsupported(_LORA, (None, "hf")),
    "max_beam_width": _BEAMS,
    "max_attention_window_size": Unsupported("attention windows are part of the model and travel in the engine"),
    "sink_token_length": Unsupported("attention sinks are not supported; leave it out", (None, 0)),
    "kv_cache_enable_block_reuse": Unsupported(
        "prefix reuse is not supported yet; pass False, results are the same", (None, False)
    ),
    "enable_chunked_context": Unsupported(
        "long prompts are always split into chunks of max_num_tokens, with the same results", (None, True, False)
    ),
    "gpu_weights_percent": Unsupported(_GPU_ONLY, (None, 1, 100)),
    "cuda_graph_mode": Unsupported(_GPU_ONLY, (None, False)),
    "device_ids": Unsupported(_GPU_ONLY),
    "debug_mode": Unsupported("there is no debug mode; `trtllm-lite inspect` shows an engine", (None, False)),
}

GENERATE: Mapping[str, Unsupported] = {
    "sampling_config": Unsupported("pass its fields as arguments: end_id, pad_id, temperature, top_k, …"),
    "num_beams": _BEAMS,
    "num_return_sequences": Unsupported("give the prompt several times, with different random_seeds", (None, 1)),
    "repetition_penalty": Unsupported(_PENALTY, (None, 1)),
    "presence_penalty": Unsupported(_PENALTY, (None, 0)),
    "frequency_penalty": Unsupported(_PENALTY, (None, 0)),
    "bad_words_list": Unsupported("banning words is not supported yet; leave it out"),
    "lora_uids": Unsupported(_LORA),
    "output_sequence_lengths": Unsupported("return_dict=True always has sequence_lengths", (None, True, False)),
    "output_log_probs": Unsupported(
        "log probabilities are not supported yet; output_generation_logits=True gives what they are computed from",
        (None, False),
    ),
    "output_cum_log_probs": Unsupported(
        "log probabilities are not supported yet; output_generation_logits=True gives what they are computed from",
        (None, False),
    ),
}


def reject_unsupported(
    function: str, given: Mapping[str, Any], table: Mapping[str, Unsupported], supported: Iterable[str]
) -> None:
    """Raise ArgumentError for the first of ``given`` that is unknown, or unsupported with a value that asks for it."""
    for name, value in given.items():
        entry = table.get(name)
        if entry is None:
            raise ArgumentError(_unknown(function, name, [*supported, *table]))
        if not _is_neutral(value, entry.neutral):
            raise ArgumentError(f"{function}: {name}={value!r} is not supported: {entry.remedy}")


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value is known or (type(value) in (int, float, bool, str) and value == known) for known in neutral)


def _unknown(function: str, name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(sorted(known))}"
    return f"{function} has no argument {name!r}: {hint}"
