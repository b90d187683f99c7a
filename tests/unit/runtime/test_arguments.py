"""Arguments of TensorRT-LLM's examples are accepted where they change nothing, and explained where they would."""

import inspect
from dataclasses import fields
from typing import Any

import pytest

from tests.unit.runtime.doubles import fake_runner
from trtllm_lite import LLM
from trtllm_lite.errors import ArgumentError
from trtllm_lite.foreign_names import arguments, calls
from trtllm_lite.foreign_names.entry import SPREAD, Foreign
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.session.config import KvCacheConfig
from trtllm_lite.runtime.session.sampling_params import SamplingParams

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


def accept(function: str, given: dict[str, object], table: dict[str, Foreign]) -> None:
    arguments.reject_unsupported(function, given, table, ())


def test_the_defaults_of_run_py_are_accepted() -> None:
    accept("from_dir", FROM_DIR, calls.FROM_DIR)
    accept("LLM", LLM_ARGUMENTS, calls.LLM)
    plain = fake_runner().generate([[5, 6]], max_new_tokens=3, temperature=0, end_id=1, pad_id=1)
    result = fake_runner().generate([[5, 6]], max_new_tokens=3, **GENERATE)
    assert result["output_ids"].tolist() == plain.tolist()


@pytest.mark.parametrize("table", [calls.FROM_DIR, calls.GENERATE, calls.LLM])
@pytest.mark.parametrize("value", [None, False, "", [], (), {}, [None, None], [[], []]], ids=repr)
def test_values_that_ask_for_nothing_are_accepted(table: dict[str, Foreign], value: object) -> None:
    accept("f", dict.fromkeys(table, value), table)


@pytest.mark.parametrize("table", [calls.FROM_DIR, calls.GENERATE, calls.LLM])
def test_all_others_say_what_to_do(table: dict[str, Foreign]) -> None:
    for name, entry in table.items():
        if entry.harmless or entry.becomes:
            continue
        with pytest.raises(ArgumentError) as raised:
            accept("f", {name: "x" * 300_000}, table)
        assert str(raised.value).endswith(entry.remedy)
        assert len(str(raised.value)) < 1000


def test_what_is_supported_is_in_no_table() -> None:
    for function, table in ((ModelRunner.from_dir, calls.FROM_DIR), (LLM.__init__, calls.LLM)):
        assert not inspect.signature(function).parameters.keys() & table.keys()


class Recorder:
    """Keeps the arguments of its constructor."""

    @arguments.takes_foreign_names("LLM", calls.LLM)
    def __init__(
        self, model: str, *, max_seq_len: int | None = None, kv_cache_config: Any = None, dtype: str = "auto"
    ) -> None:
        self.given = (model, max_seq_len, kv_cache_config, dtype)


def test_names_of_vllm_stand_for_arguments() -> None:
    config = {"max_tokens": 64}
    made = Recorder("m", max_model_len=96, kv_cache_config=config, enable_prefix_caching=False, block_size=16)
    assert made.given == ("m", 96, {"max_tokens": 64, "enable_block_reuse": False, "tokens_per_block": 16}, "auto")
    assert config == {"max_tokens": 64}
    assert Recorder("m", max_model_len=None, kv_cache_dtype="auto", seed=0).given == ("m", None, None, "auto")


def test_what_becomes_of_a_name_is_an_argument() -> None:
    parameters = inspect.signature(LLM.__init__).parameters
    for entry in calls.LLM.values():
        argument, _, field = (entry.becomes or "dtype").partition(".")
        assert argument in (*parameters, SPREAD)
        assert not field or field in {own.name for own in fields(KvCacheConfig)}


def test_configurations_and_parameters_take_foreign_names() -> None:
    params = SamplingParams(max_new_tokens=7, bad_words=["a"], random_seed=3, no_repeat_ngram_size=0)
    assert params == SamplingParams(max_tokens=7, bad=["a"], seed=3)
    assert KvCacheConfig(onboard_blocks=True, cross_kv_cache_fraction=None) == KvCacheConfig()
    with pytest.raises(ArgumentError, match=r"SamplingParams does not take embedding_bias=.*: use logit_bias"):
        SamplingParams(embedding_bias=[1.0])
    with pytest.raises(ArgumentError, match=r"KvCacheConfig has no argument 'max_token': did you mean max_tokens"):
        KvCacheConfig(max_token=3)
    for made, table in ((SamplingParams, calls.SAMPLING_PARAMS), (KvCacheConfig, calls.KV_CACHE_CONFIG)):
        own = {field.name for field in fields(made)}
        assert not table.keys() & own
        assert {entry.becomes for entry in table.values() if entry.becomes} <= own


def test_one_argument_is_not_given_by_two_names() -> None:
    for given in ({"max_seq_len": 64}, {"kv_cache_config": KvCacheConfig()}, {"kv_cache_config": {"dtype": "fp8"}}):
        with pytest.raises(ArgumentError, match="is given, too"):
            Recorder("m", max_model_len=64, kv_cache_dtype="int8", **given)


def test_what_changes_nothing_is_said() -> None:
    with pytest.warns(UserWarning, match="LLM: disable_custom_all_reduce=True changes nothing") as caught:
        assert Recorder("m", disable_custom_all_reduce=True, swap_space=4).given == ("m", None, None, "auto")
    assert [entry.filename for entry in caught] == [__file__]
    with pytest.warns(UserWarning, match="what weights leave free"):
        assert Recorder("m", gpu_memory_utilization=0.5).given[2] == {"free_gpu_memory_fraction": 0.5}


def test_suggestions_are_names_that_are_supported() -> None:
    with pytest.raises(ArgumentError, match=r"known: engine_dir$"):
        arguments.reject_unsupported("f", {"zzz": None}, calls.FROM_DIR, ["engine_dir"])
    with pytest.raises(ArgumentError, match=r"did you mean engine_dir\?"):
        arguments.reject_unsupported("f", {"engine_dirs": None}, calls.FROM_DIR, ["engine_dir"])
