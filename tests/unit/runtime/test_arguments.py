"""Arguments of TensorRT-LLM's examples are accepted where they ask for nothing, and explained where they do not."""

import inspect

import pytest

from tests.unit.runtime.doubles import fake_runner
from trtllm_lite import LLM
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.api import arguments

# The arguments that examples/run.py passes when it is run with its defaults.
FROM_DIR = {
    **dict.fromkeys(("max_attention_window_size", "sink_token_length", "medusa_choices")),
    **dict.fromkeys(("eagle_choices", "lookahead_config", "cross_kv_cache_fraction", "logits_processor_map")),
    **dict.fromkeys(("debug_mode", "is_enc_dec", "cuda_graph_mode", "mm_embedding_offloading"), False),
    **dict.fromkeys(("enable_context_fmha_fp32_acc", "gather_generation_logits", "is_orchestrator_mode"), False),
    **{"lora_ckpt_source": "hf", "gpu_weights_percent": 1, "multi_block_mode": True, "use_runtime_defaults": True},
    "fail_fast_on_attention_window_too_large": False,
}
GENERATE = {
    **dict.fromkeys(("encoder_input_ids", "encoder_input_features", "encoder_output_lengths", "mrope_params")),
    **dict.fromkeys(("cross_attention_masks", "max_attention_window_size", "sink_token_length", "stop_words_list")),
    **dict.fromkeys(("bad_words_list", "lora_uids", "prompt_table", "prompt_tasks", "no_repeat_ngram_size", "min_p")),
    **dict.fromkeys(("input_token_extra_ids", "language_adapter_uids", "medusa_choices", "eagle_choices")),
    **{"num_beams": 1, "num_return_sequences": 1, "length_penalty": 1.0, "early_stopping": 1, "random_seed": 0},
    **{"temperature": 1.0, "top_k": 1, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    **{"beam_search_diversity_rate": 0.0, "output_sequence_lengths": True, "return_all_generated_tokens": False},
    **{"output_cum_log_probs": False, "output_log_probs": False, "output_generation_logits": False},
    **{"fail_fast_on_attention_window_too_large": False, "end_id": 1, "pad_id": 1, "return_dict": True},
}
LLM_ARGUMENTS = {"context_parallel_size": 1, "trust_remote_code": False, "revision": None}


def accept(function: str, given: dict[str, object], table: dict[str, arguments.Unsupported]) -> None:
    arguments.reject_unsupported(function, given, table, ())


def test_the_defaults_of_run_py_are_accepted() -> None:
    accept("from_dir", FROM_DIR, arguments.FROM_DIR)
    accept("LLM", LLM_ARGUMENTS, arguments.LLM)
    plain = fake_runner().generate([[5, 6]], max_new_tokens=3, temperature=0, end_id=1, pad_id=1)
    result = fake_runner().generate([[5, 6]], max_new_tokens=3, **GENERATE)
    assert result["output_ids"].tolist() == plain.tolist()


@pytest.mark.parametrize("table", [arguments.FROM_DIR, arguments.GENERATE, arguments.LLM])
@pytest.mark.parametrize("value", [None, False, "", [], (), {}, [None, None], [[], []]], ids=repr)
def test_values_that_ask_for_nothing_are_accepted(table: dict[str, arguments.Unsupported], value: object) -> None:
    accept("f", dict.fromkeys(table, value), table)


@pytest.mark.parametrize("table", [arguments.FROM_DIR, arguments.GENERATE, arguments.LLM])
def test_all_others_say_what_to_do(table: dict[str, arguments.Unsupported]) -> None:
    for name, entry in table.items():
        with pytest.raises(ArgumentError) as raised:
            accept("f", {name: "x" * 300_000}, table)
        assert str(raised.value).endswith(entry.remedy)
        assert len(str(raised.value)) < 1000


def test_what_is_supported_is_in_no_table() -> None:
    for function, table in ((ModelRunner.from_dir, arguments.FROM_DIR), (LLM.__init__, arguments.LLM)):
        assert not inspect.signature(function).parameters.keys() & table.keys()


def test_suggestions_are_names_that_are_supported() -> None:
    with pytest.raises(ArgumentError, match=r"known: engine_dir$"):
        arguments.reject_unsupported("f", {"zzz": None}, arguments.FROM_DIR, ["engine_dir"])
    with pytest.raises(ArgumentError, match=r"did you mean engine_dir\?"):
        arguments.reject_unsupported("f", {"engine_dirs": None}, arguments.FROM_DIR, ["engine_dir"])
