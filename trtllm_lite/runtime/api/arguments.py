"""Names that TensorRT-LLM's ModelRunner and LLM know and this runtime does not support (yet), and what to do instead.

A name with a value that asks for nothing (``num_beams=1``) is accepted, so that old calls keep working; any other value
is an error that says what replaces it, and so is a name that nobody knows.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_lite.errors import ArgumentError, shown


@dataclass(frozen=True)
class Unsupported:
    """``neutral`` values are accepted and change nothing."""

    remedy: str
    neutral: tuple[Any, ...] = (None,)


_LORA = "LoRA adapters are not supported yet; merge the adapter into the checkpoint before `trtllm-lite convert`"
_AUTOMATIC = "engines for GPUs choose this themselves; leave it out"
_ONE_DEVICE = Unsupported("engines run on one device; leave it out", (None, 1))

FROM_DIR: Mapping[str, Unsupported] = {
    "lora_dir": Unsupported(_LORA),
    "lora_ckpt_source": Unsupported(_LORA, (None, "hf")),
    "max_attention_window_size": Unsupported("attention windows are part of the model and travel in the engine"),
    "sink_token_length": Unsupported("attention sinks are not supported; leave it out", (None, 0)),
    "gpu_weights_percent": Unsupported(_AUTOMATIC, (None, 1, 100)),
    "cuda_graph_mode": Unsupported(_AUTOMATIC, (None, False)),
    "device_ids": Unsupported(_AUTOMATIC),
    "debug_mode": Unsupported("there is no debug mode; `trtllm-lite inspect` shows an engine", (None, False)),
}

GENERATE: Mapping[str, Unsupported] = {
    "lora_uids": Unsupported(_LORA),
    "output_sequence_lengths": Unsupported("return_dict=True always has sequence_lengths", (None, True, False)),
}

LLM: Mapping[str, Unsupported] = {
    "trust_remote_code": Unsupported("code that comes with a model is never run; leave it out", (None, False)),
    "tensor_parallel_size": _ONE_DEVICE,
    "pipeline_parallel_size": _ONE_DEVICE,
    "cuda_graph_config": Unsupported(_AUTOMATIC),
    "guided_decoding_backend": Unsupported("guided decoding is not supported; allowed_token_ids of SamplingParams is"),
    "enable_lora": Unsupported(_LORA, (None, False)),
    "quant_config": Unsupported("quantization is not supported yet; dtype chooses how weights are stored"),
    "build_config": Unsupported("pass its limits as arguments: max_batch_size, max_input_len, max_seq_len, ..."),
    "skip_tokenizer_init": Unsupported("the tokenizer loads in milliseconds; leave it out", (None, False)),
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
            raise ArgumentError(f"{function}: {name}={shown(value)} is not supported: {entry.remedy}")


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value is known or (type(value) in (int, float, bool, str) and value == known) for known in neutral)


def _unknown(function: str, name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(sorted(known))}"
    return f"{function} has no argument {name!r}: {hint}"
