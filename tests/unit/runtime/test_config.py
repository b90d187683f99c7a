"""KvCacheConfig and SchedulerConfig: what they refuse, and what they do to the limits of an engine."""

import pytest

from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.session.config import KvCacheConfig, SchedulerConfig
from trtllm_lite.runtime.session.limits import RunnerOptions, runner_limits

from .doubles import fake_manifest


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"enable_block_reuse": 1}, "enable_block_reuse is 1: expected True or False"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"free_gpu_memory_fraction": 1.5}, "free_gpu_memory_fraction is 1.5"),
        ({"max_gpu_total_bytes": -1}, "max_gpu_total_bytes is -1"),
        ({"host_cache_size": 0.5}, "host_cache_size is 0.5"),
        ({"max_attention_window": [4096]}, "attention windows are part of the model"),
        ({"sink_token_length": 4}, "only attention sinks of the model itself"),
        ({"event_buffer_max_size": 10}, "get_stats"),
    ],
)
def test_a_cache_that_makes_no_sense(given, message):
    with pytest.raises(ArgumentError, match=message):
        KvCacheConfig(**given)


def test_neutral_values_ask_for_nothing():
    assert KvCacheConfig(max_gpu_total_bytes=0, host_cache_size=0, sink_token_length=None).max_tokens is None
    assert SchedulerConfig(context_chunking_policy="FIRST_COME_FIRST_SERVED").capacity_scheduler_policy


@pytest.mark.parametrize(
    "given", [{"capacity_scheduler_policy": "STATIC_BATCH"}, {"context_chunking_policy": "EQUAL_PROGRESS"}]
)
def test_policies_that_do_not_exist(given):
    with pytest.raises(ArgumentError, match="expected one of"):
        SchedulerConfig(**given)


def test_an_engine_keeps_its_geometry():
    for given in ({"tokens_per_block": 8}, {"dtype": "float16"}):
        with pytest.raises(ArgumentError, match="this engine was built for"):
            runner_limits(fake_manifest(), RunnerOptions(kv_cache=KvCacheConfig(**given)), 1 << 40)
    same = KvCacheConfig(tokens_per_block=4, dtype="float32")
    assert runner_limits(fake_manifest(), RunnerOptions(kv_cache=same), 1 << 40).tokens_per_block == 4


def test_without_chunks_a_prompt_fits_into_a_step():
    with pytest.raises(LimitError, match="max_input_len=24 tokens must fit into a step of max_num_tokens=16"):
        runner_limits(fake_manifest(), RunnerOptions(enable_chunked_context=False), 1 << 40)
    options = RunnerOptions(enable_chunked_context=False, max_input_len=16)
    assert runner_limits(fake_manifest(), options, 1 << 40).max_input_len == 16


def test_beams_take_places_in_the_batch():
    assert runner_limits(fake_manifest(), RunnerOptions(max_batch_size=3), 1 << 40).max_beam_width == 3
    assert runner_limits(fake_manifest(), RunnerOptions(max_beam_width=2), 1 << 40).max_beam_width == 2
    with pytest.raises(LimitError, match=r"max_beam_width=5 exceeds .* built for \(4\): .* a larger --max_beam_width"):
        runner_limits(fake_manifest(), RunnerOptions(max_beam_width=5), 1 << 40)


def test_searches_are_as_wide_as_the_engine_was_built_for():
    narrow = fake_manifest(max_beam_width=2)
    assert runner_limits(narrow, RunnerOptions(), 1 << 40).max_beam_width == 2
    with pytest.raises(LimitError, match=r"max_beam_width=3 exceeds what this engine was built for \(2\)"):
        runner_limits(narrow, RunnerOptions(max_beam_width=3), 1 << 40)
