"""Generation defaults of published models are those that transformers reads; an unsupported default is an error."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, GenerationConfig

from tests.models import save_tiny_model
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.fields.generation import read_token_ids, sampling_defaults
from trtllm_lite.errors import ConvertError

_VOCABULARY = 262_144
_SAMPLED = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_QWEN = {"bos_token_id": 151643, "pad_token_id": 151643, "do_sample": True, "eos_token_id": [151645, 151643]}
_LLAMA3 = {"bos_token_id": 128000, "do_sample": True, "temperature": 0.6, "top_p": 0.9}
_LLAMA3_ENDS = {"eos_token_id": [128001, 128008, 128009]}
_WRITTEN = {"transformers_version": "4.42.3", "_from_model_config": True}
# The contents of generation_config.json on huggingface.co, by model.
_PUBLISHED: dict[str, dict[str, Any]] = {
    "openai-community/gpt2": {**_WRITTEN, "bos_token_id": 50256, "eos_token_id": 50256},
    "Qwen/Qwen2.5-7B-Instruct": {**_QWEN, "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
    "Qwen/Qwen2.5-7B": {"bos_token_id": 151643, "do_sample": False, "eos_token_id": 151643, "max_new_tokens": 2048},
    "Qwen/Qwen3-8B": {**_QWEN, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "Qwen/QwQ-32B": {**_QWEN, "repetition_penalty": 1.0, "temperature": 0.6, "top_k": 40, "top_p": 0.95},
    "Qwen/Qwen-7B-Chat": {
        **{"chat_format": "chatml", "eos_token_id": 151643, "pad_token_id": 151643, "max_window_size": 24000},
        **{"max_new_tokens": 512, "do_sample": True, "top_k": 0, "top_p": 0.8},
    },
    "meta-llama/Llama-2-7b-chat-hf": {
        **{"bos_token_id": 1, "do_sample": True, "eos_token_id": 2, "pad_token_id": 0, "temperature": 0.6},
        **{"max_length": 4096, "top_p": 0.9},
    },
    "meta-llama/Llama-3.1-8B-Instruct": {**_LLAMA3, **_LLAMA3_ENDS},
    "meta-llama/Llama-3.2-1B": {**_LLAMA3, "eos_token_id": 128001},
    "unsloth/Llama-3.2-3B-Instruct": {**_LLAMA3, **_LLAMA3_ENDS, "pad_token_id": 128004, "max_length": 131072},
    "deepseek-ai/DeepSeek-R1": {**_WRITTEN, "bos_token_id": 0, "do_sample": True, "temperature": 0.6, "top_p": 0.95},
    "deepseek-ai/DeepSeek-V3": {
        **_WRITTEN,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "do_sample": True,
        "temperature": 0.3,
    },
    "mistralai/Mistral-7B-Instruct-v0.3": {**_WRITTEN, "bos_token_id": 1, "eos_token_id": 2},
    "mistralai/Ministral-8B-Instruct-2410": {"bos_token_id": 1, "eos_token_id": 2, "max_length": 32768},
    "google/gemma-2-2b-it": {"bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1, "pad_token_id": 0},
    "google/gemma-3-1b-it": {
        **{"cache_implementation": "hybrid", "do_sample": True, "eos_token_id": [1, 106], "pad_token_id": 0},
        **{"bos_token_id": 2, "top_k": 64, "top_p": 0.95},
    },
    "microsoft/Phi-3.5-mini-instruct": {
        "bos_token_id": 1,
        "eos_token_id": [32007, 32001, 32000],
        "pad_token_id": 32000,
    },
    "microsoft/phi-4": {**_WRITTEN, "bos_token_id": 100257, "eos_token_id": [100257, 100265], "pad_token_id": 100349},
    "HuggingFaceTB/SmolLM3-3B": {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "eos_token_id": 128012},
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": {**_WRITTEN, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
    "bigcode/starcoder2-3b": {**_WRITTEN, "bos_token_id": 0, "eos_token_id": 0},
    "ibm-granite/granite-3.3-8b-instruct": {**_WRITTEN, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
    "allenai/OLMo-2-1124-7B-Instruct": {**_WRITTEN, "eos_token_id": 100257, "pad_token_id": 100277},
    "THUDM/GLM-4-9B-0414": {"eos_token_id": [151329, 151336, 151338], "pad_token_id": 151329, **_WRITTEN},
    "CohereForAI/c4ai-command-r-v01": {**_WRITTEN, "bos_token_id": 5, "eos_token_id": 255001, "pad_token_id": 0},
    "openai/gpt-oss-20b": {
        **{"bos_token_id": 199998, "do_sample": True, "eos_token_id": [200002, 199999, 200012], "pad_token_id": 199999},
    },
    "LGAI-EXAONE/EXAONE-4.0-1.2B": {"bos_token_id": 1, "do_sample": True, "eos_token_id": 361, "top_p": 0.95},
    "internlm/internlm3-8b-instruct": {**_WRITTEN, "bos_token_id": 1, "eos_token_id": [2, 128131], "pad_token_id": 2},
    "tiiuae/Falcon3-7B-Instruct": {**_WRITTEN, "bos_token_id": 11, "eos_token_id": 11},
    "EleutherAI/pythia-1b": {**_WRITTEN, "bos_token_id": 0, "eos_token_id": 0},
    "lmsys/vicuna-7b-v1.5": {
        **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_length": 4096},
        **{"temperature": 0.9, "top_p": 0.6, **_WRITTEN},
    },
    "baichuan-inc/Baichuan2-7B-Chat": {
        **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "user_token_id": 195, "assistant_token_id": 196},
        **{"max_new_tokens": 2048, "temperature": 0.3, "top_k": 5, "top_p": 0.85, "repetition_penalty": 1.05},
        "do_sample": True,
    },
    "written out in full": {
        **{"num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1, "length_penalty": 1.0, "typical_p": 1.0},
        **{"no_repeat_ngram_size": 0, "min_length": 0, "early_stopping": False, "encoder_repetition_penalty": 1.0},
        **{"epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "guidance_scale": 1.0, "forced_eos_token_id": None},
        **{"suppress_tokens": None, "bad_words_ids": None, "use_cache": True, "renormalize_logits": False},
        **{"do_sample": True, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "eos_token_id": 7},
    },
}


@pytest.mark.parametrize("name", _PUBLISHED)
def test_published_defaults_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(_PUBLISHED[name]))
    theirs = GenerationConfig.from_pretrained(tmp_path)
    ends = read_token_ids(_PUBLISHED[name], "eos_token_id", _VOCABULARY)
    found = sampling_defaults(_PUBLISHED[name], ends, _VOCABULARY, "the model")
    assert {key: found.get(key) for key in _SAMPLED} == {key: getattr(theirs, key) for key in _SAMPLED}
    theirs_ends = theirs.eos_token_id if isinstance(theirs.eos_token_id, list) else [theirs.eos_token_id]
    assert ends == [number for number in theirs_ends if number is not None]


@pytest.mark.parametrize("value", [["<|end|>"], "<|end|>", 1.0, [1, 2.0], True, {"id": 1}, [[1]]])
@pytest.mark.parametrize("key", ["eos_token_id", "bos_token_id", "pad_token_id"])
def test_ids_of_other_kinds_are_errors(key: str, value: Any) -> None:
    with pytest.raises(ConvertError, match=rf"{key} is .*: expected a token's number or a list .*_config_keys {key} "):
        read_token_ids({key: value}, key, 10)


@pytest.mark.parametrize(("value", "ids"), [(None, []), (-1, []), (0, [0]), ([3, 12, 3], [3, 3]), (12, [])])
def test_ids_that_no_model_can_produce_are_left_out(value: Any, ids: list[int]) -> None:
    assert read_token_ids({"eos_token_id": value}, "eos_token_id", 10) == ids


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("num_beams", 4), ("num_return_sequences", 2), ("no_repeat_ngram_size", 3), ("typical_p", 0.9)),
        *(("min_new_tokens", 5), ("min_length", 5), ("epsilon_cutoff", 3e-4), ("eta_cutoff", 3e-4), ("top_h", 0.4)),
        *(
            ("suppress_tokens", [0]),
            ("begin_suppress_tokens", [7, 8]),
            ("bad_words_ids", [[5]]),
            ("penalty_alpha", 0.6),
        ),
        *(("forced_bos_token_id", 0), ("forced_eos_token_id", 1), ("guidance_scale", 1.5), ("stop_strings", ["x"])),
        *(("sequence_bias", [[[5], 1.0]]), ("watermarking_config", {"bias": 2.0}), ("token_healing", True)),
        *(("exponential_decay_length_penalty", [15, 1.6]), ("encoder_repetition_penalty", 1.2), ("max_time", 2.0)),
        *(("encoder_no_repeat_ngram_size", 3), ("force_words_ids", [[5]]), ("dola_layers", "low"), ("flavour", 1)),
    ],
)
def test_what_requests_cannot_follow_is_an_error(key: str, value: Any) -> None:
    with pytest.raises(
        ConvertError, match=rf"generation_config\.{key}: .*--ignore_config_keys generation_config\.{key} "
    ):
        sampling_defaults({key: value, "top_k": 5}, [1], 10, "the model")


def test_temperature_zero_is_greedy() -> None:
    defaults = {"do_sample": True, "temperature": 0, "top_p": 0.9}
    assert sampling_defaults(defaults, [1], 10, "the model") == defaults


@pytest.mark.parametrize("key", ["num_beams", "generation_config.num_beams"])
def test_defaults_of_config_json_count_without_the_other_file(key: str, tmp_path: Path) -> None:
    """transformers reads these defaults only if there is no generation_config.json."""
    save_tiny_model("llama", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    ours = {"do_sample": True, "temperature": 0.5, "repetition_penalty": 1.25, "num_beams": 3}
    path.write_text(json.dumps({**json.loads(path.read_text()), **ours}))
    assert convert_checkpoint(str(tmp_path / "model"), tmp_path / "with").config.generation == {}
    (tmp_path / "model" / "generation_config.json").unlink()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model").generation_config
    assert (theirs.num_beams, theirs.repetition_penalty) == (3, 1.25)
    with pytest.raises(
        ConvertError, match=r"generation_config\.num_beams: 3 is not supported; expected 1; to go without"
    ):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    config = convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", ignore_config_keys=[key]).config
    assert config.generation == {name: getattr(theirs, name) for name in _SAMPLED if name in ours}
    assert config.ignored_config_keys == [key]
