"""LLM with many requests: stops, ends, failures, order of service, preemption and prefix reuse change no token."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.llm import GREEDY, random_prompts
from tests.models import tiny_tokenizer
from trtllm_lite import LLM, KvCacheConfig, SamplingParams, SchedulerConfig
from trtllm_lite.errors import ArgumentError, EngineError, LimitError, OverloadedError
from trtllm_lite.runtime.session.request_handle import RequestHandle

LONG = replace(GREEDY, max_tokens=32)


def tokens_of(llm: LLM, prompts: list[list[int]], params: SamplingParams = LONG) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


def multi_byte_params() -> SamplingParams:
    """Parameters under which the model writes a's and two-byte characters, whose bytes are separate tokens."""
    leads, continuations, letter = (
        [tiny_tokenizer().token_to_id(name) for name in names] for names in ("ÃÄ", "±¡", "a")
    )
    last = tiny_tokenizer().encode("the").ids[-1]
    broken = [*((lead, other) for lead in leads for other in [*leads, *letter])]
    broken += [(other, continuation) for other in [*continuations, *letter, last] for continuation in continuations]
    allowed = [*leads, *continuations, *letter]
    return replace(LONG, allowed_token_ids=allowed, bad=broken, temperature=3.0, seed=2)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_across_tokens(llm: LLM, streaming: bool, include: bool) -> None:
    """Stop strings are all strings of three characters in a text whose characters consist of several tokens."""
    assert llm.tokenizer is not None
    params = multi_byte_params()
    text = llm.generate("the", params).outputs[0].text.rstrip("\N{REPLACEMENT CHARACTER}")
    assert len(set(text)) == 5
    for start in range(2, len(text) - 3):
        stop = text[start : start + 3]
        wanted = replace(params, stop=[stop, "never"], include_stop_str_in_output=include)
        outputs = list(llm.generate_async("the", wanted, streaming=streaming))
        completion = outputs[-1].outputs[0]
        assert completion.text == text[: text.find(stop) + (3 if include else 0)]
        assert "".join(output.outputs[0].text_diff for output in outputs) == completion.text
        assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
        assert stop in llm.tokenizer.decode(completion.token_ids)


def test_stop_tokens_and_end_tokens(llm: LLM) -> None:
    prompt = random_prompts(10, 1)[0]
    tokens = llm.generate(prompt, LONG).outputs[0].token_ids
    place = next(i for i in range(3, 32) if tokens.index(tokens[i]) == i)
    for params, reason in (
        (replace(LONG, stop_token_ids=[tokens[place]]), tokens[place]),
        (replace(LONG, stop=[[tokens[place]]]), (tokens[place],)),
        (replace(LONG, stop=[tokens[place - 2 : place + 1]]), tuple(tokens[place - 2 : place + 1])),
        (replace(LONG, ignore_eos=False, end_id=tokens[place]), None),
    ):
        completion = llm.generate(prompt, params).outputs[0]
        assert completion.token_ids == tokens[: place + 1]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", reason)
        least = llm.generate(prompt, replace(params, min_tokens=place + 2)).outputs[0]
        assert len(least.token_ids) >= place + 2


def test_one_bad_request_runs_none(llm: LLM) -> None:
    before = llm.get_stats().num_generated_tokens
    prompts = random_prompts(11, 3)
    with pytest.raises(LimitError, match="prompt 3 has 97 tokens"):
        llm.generate([*prompts, [5] * 97], GREEDY)
    with pytest.raises(ArgumentError, match="stop_token_ids"):
        llm.generate(prompts, [GREEDY, replace(GREEDY, stop_token_ids=[9999]), GREEDY])
    with pytest.raises(ArgumentError, match="sampling_params has 2 values for 3 prompts"):
        llm.generate(prompts, [GREEDY] * 2)
    with pytest.raises(ArgumentError, match="is 'greedy': expected SamplingParams"):
        llm.generate("the", "greedy")
    for name, value in (
        ("priority", 101),
        ("priority", "high"),
        ("timeout", 0),
        ("timeout", "soon"),
        ("cache_salt", 1),
    ):
        with pytest.raises(ArgumentError, match=f"{name} is {value!r}"):
            llm.generate("the", GREEDY, **{name: value})
    assert llm.get_stats().num_generated_tokens == before


def test_one_failing_request_is_its_own_error(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = random_prompts(12, 5)
    expected = tokens_of(llm, prompts)
    params = [replace(LONG, skip_special_tokens=row != 2) for row in range(5)]
    steps, collect = iter(range(4)), RequestHandle.collect

    def fail_one(handle: RequestHandle, *arguments: Any) -> None:
        if not handle.request.params.skip_special_tokens:
            next(steps)
        collect(handle, *arguments)

    monkeypatch.setattr(RequestHandle, "collect", fail_one)
    outputs = llm.generate(prompts, params)
    for row in (0, 1, 3, 4):
        assert outputs[row].error is None
        assert outputs[row].outputs[0].token_ids == expected[row]
    assert isinstance(outputs[2].error, EngineError)
    assert outputs[2].outputs[0].finish_reason == "error"
    assert outputs[2].outputs[0].token_ids == expected[2][: len(outputs[2].outputs[0].token_ids)]
    with pytest.raises(EngineError, match="StopIteration"):
        llm.generate(prompts[2], params[2])


def test_cancel_and_timeout_keep_what_there_is(llm: LLM) -> None:
    prompt = random_prompts(13, 1, longest=20)[0]
    long = replace(GREEDY, max_tokens=100)
    expected = llm.generate(prompt, long).outputs[0].token_ids
    generation = llm.generate_async(prompt, long, streaming=True)
    for output in generation:
        if len(output.outputs[0].token_ids) == 3:
            generation.cancel()
    completion = output.outputs[0]
    assert completion.finish_reason in ("cancelled", "length")
    assert completion.token_ids == expected[: len(completion.token_ids)]
    late = llm.generate(prompt, long, timeout=1e-6)
    assert (late.outputs[0].finish_reason, late.finished) == ("timeout", True)
    assert late.outputs[0].token_ids == expected[: len(late.outputs[0].token_ids)]


def test_dropped_generations_end(llm: LLM) -> None:
    generations = [llm.generate_async(prompt, LONG) for prompt in random_prompts(14, 9)]
    kept = generations[3]
    expected = kept.result().outputs
    del generations
    assert kept.result().outputs == expected
    tokens_of(llm, random_prompts(14, 2))
    assert llm.get_stats().num_waiting == 0


def test_greater_priorities_go_first(llm: LLM) -> None:
    prompts = random_prompts(15, 6, longest=20)
    order: list[int] = []

    async def run(narrow: LLM) -> None:
        blocker = replace(GREEDY, max_tokens=100)
        blockers = [narrow.generate_async(prompts[0], blocker, priority=100) for _ in range(64)]
        generations = [
            narrow.generate_async(prompt, GREEDY, priority=priority)
            for prompt, priority in zip(prompts[1:], (0, 5, -5, 99, 5), strict=True)
        ]
        assert not blockers[-1].finished

        async def wait(row: int) -> None:
            await generations[row]
            order.append(row)

        await asyncio.gather(*(wait(row) for row in range(5)))

    with LLM(llm.engine_dir, max_batch_size=1) as narrow:
        asyncio.run(run(narrow))
    assert order == [3, 1, 4, 0, 2]


@pytest.mark.parametrize("host_cache_size", [0, 1 << 24])
def test_preemption_changes_no_token(llm: LLM, host_cache_size: int) -> None:
    prompts = random_prompts(16, 12, longest=30)
    params = replace(GREEDY, max_tokens=90)
    expected = tokens_of(llm, prompts, params)
    cache = KvCacheConfig(max_tokens=176, host_cache_size=host_cache_size, enable_block_reuse=False)
    scheduler = SchedulerConfig(capacity_scheduler_policy="MAX_UTILIZATION")
    with LLM(llm.engine_dir, kv_cache_config=cache, scheduler_config=scheduler) as tight:
        assert tokens_of(tight, prompts, params) == expected
        stats = tight.get_stats()
    assert stats.num_recompute_preemptions + stats.num_swap_preemptions > 0
    assert stats.num_blocks == 11
    assert host_cache_size or stats.num_swap_preemptions == 0
    assert stats.latencies.num_requests == 12


@pytest.mark.parametrize("chunked", [False, True])
def test_shared_prefixes_are_computed_once(llm: LLM, chunked: bool) -> None:
    prefix = random_prompts(17, 1, longest=1)[0] * 64
    prompts = [prefix + tail for tail in random_prompts(18, 6, longest=20)]
    limits = {} if chunked else {"max_num_tokens": 64, "max_input_len": 64}
    if not chunked:
        prompts = [prompt[-64:] for prompt in prompts]
    plain = KvCacheConfig(enable_block_reuse=False)
    with LLM(llm.engine_dir, kv_cache_config=plain, enable_chunked_prefill=chunked, **limits) as without:
        expected = without.generate(prompts, GREEDY)
        assert without.get_stats().prefix_hit_rate == 0
    with LLM(llm.engine_dir, enable_chunked_prefill=chunked, **limits) as reusing:
        first = reusing.generate(prompts, GREEDY)
        assert [output.outputs for output in first] == [output.outputs for output in expected]
        again = reusing.generate(prompts[0], GREEDY)
        assert again.outputs == expected[0].outputs
        assert again.metrics.num_cached_tokens >= len(prompts[0]) - 16
        assert reusing.get_stats().prefix_hit_rate > 0
        other = reusing.generate(prompts[0], GREEDY, cache_salt="another tenant")
        assert (other.outputs, other.metrics.num_cached_tokens) == (expected[0].outputs, 0)


def test_continuations_of_a_prompt_compute_it_once(llm: LLM) -> None:
    prompt = random_prompts(21, 1)[0] * 96
    params = SamplingParams(n=4, max_tokens=4, temperature=1.0, ignore_eos=True)
    with LLM(llm.engine_dir) as fresh:
        fresh.generate(prompt[:80], params)
        assert fresh.get_stats().num_scheduled_tokens < 80 + 4 * (16 + 4)


def test_truncation_is_asked_for_and_reported(llm: LLM) -> None:
    prompt = random_prompts(19, 1)[0] * 8
    with pytest.raises(LimitError, match="exceeds max_input_len 96"):
        llm.generate(prompt, GREEDY)
    output = llm.generate(prompt, replace(GREEDY, truncate_prompt_tokens=50))
    assert output.num_truncated_tokens == len(prompt) - 50
    assert output.prompt_token_ids == prompt[-50:]
    assert output.outputs == llm.generate(prompt[-50:], GREEDY).outputs


def test_threads_share_an_llm(llm: LLM) -> None:
    prompts = random_prompts(20, 8)
    expected = tokens_of(llm, prompts)
    found: dict[int, list[int]] = {}

    def work(row: int) -> None:
        found[row] = llm.generate(prompts[row], LONG).outputs[0].token_ids

    threads = [threading.Thread(target=work, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[row] for row in range(8)] == expected


def test_after_shutdown_nothing_runs(llm: LLM) -> None:
    with LLM(llm.engine_dir) as closed:
        pass
    closed.shutdown()
    with pytest.raises(LimitError, match="shut down"):
        closed.generate("the", GREEDY)


def test_an_llm_that_is_dropped_keeps_its_generations(llm: LLM) -> None:
    expected = llm.generate("the", LONG).outputs
    generation = LLM(llm.engine_dir).generate_async("the", LONG)
    assert generation.result().outputs == expected


def test_a_full_queue_is_an_error_of_its_own(llm: LLM) -> None:
    generations = []

    def flood() -> None:
        for _ in range(64):
            generations.append(llm.generate_async([5, 6], replace(LONG, n=128, temperature=1.0)))

    with pytest.raises(OverloadedError, match=r"expected fewer than 2048 sequences .* submit again"):
        flood()
    assert len(generations) >= 16
    for generation in generations:
        generation.cancel()
    assert all(generation.result().outputs[0].finish_reason in ("cancelled", "length") for generation in generations)
    assert len(llm.generate([5, 6], LONG).outputs[0].token_ids) == 32
