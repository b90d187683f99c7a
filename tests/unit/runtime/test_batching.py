"""The batching loop: what is in a step, and that blocks always come back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_lite.errors import LimitError
from trtllm_lite.runtime.batching import BatchLoop
from trtllm_lite.runtime.limits import RunnerOptions
from trtllm_lite.runtime.request import FinishReason, Request, Sampling

from .doubles import fake_session, greedy_continuation


def request(prompt, count, **arguments):
    return Request(np.array(prompt, np.int32), count, **arguments)


def run(session, requests):
    """Tokens of each request."""
    with BatchLoop(session) as loop:
        tokens = {loop.enqueue_request(entry): [] for entry in requests}
        while not loop.idle:
            for response in loop.await_responses():
                tokens[response.request_id].append(response.token_id)
    assert session.blocks.num_free == session.limits.num_blocks
    session.blocks.check_integrity()
    return list(tokens.values())


@settings(deadline=None, max_examples=60)
@given(
    prompts=st.lists(st.lists(st.integers(3, 396), min_size=1, max_size=24), min_size=1, max_size=9),
    max_num_tokens=st.integers(4, 16),
    num_blocks=st.integers(8, 40),
    count=st.integers(1, 12),
)
def test_tokens_depend_on_the_prompt_alone(prompts, max_num_tokens, num_blocks, count):
    """Any batch, any split into chunks, any shortage of blocks (requests wait for them)."""
    options = RunnerOptions(max_num_tokens=max_num_tokens, max_tokens_in_paged_kv_cache=4 * max(num_blocks, 9))
    session = fake_session(options)
    tokens = run(session, [request(prompt, count) for prompt in prompts])
    assert tokens == [greedy_continuation(prompt, count) for prompt in prompts]


def test_steps_mix_prefill_chunks_and_decodes():
    session = fake_session()
    run(session, [request([5], 6), request([6] * 24, 2)])
    # 16 tokens a step: the first prompt and 15 of the second, then one decode and the other 9, then decodes.
    assert session.executor.steps[:3] == [([1, 15], [0, 0]), ([1, 9], [1, 15]), ([1, 1], [2, 24])]


def test_finished_sequences_leave_at_once():
    session = fake_session()
    run(session, [request([5], 1), request([6], 3)])
    assert [len(lengths) for lengths, _ in session.executor.steps] == [2, 1, 1]


def test_waiting_requests_start_when_a_place_is_free():
    session = fake_session()
    run(session, [request([5], 2 + row) for row in range(6)])
    assert [len(lengths) for lengths, _ in session.executor.steps][:4] == [4, 4, 4, 4]


def test_end_id_is_the_last_token():
    session = fake_session()
    expected = greedy_continuation([9], 5)
    with BatchLoop(session) as loop:
        loop.enqueue_request(request([9], 5, end_ids=frozenset((expected[2],))))
        responses = [loop.await_responses()[0] for _ in range(3)]
        assert loop.idle
    assert [response.token_id for response in responses] == expected[:3]
    assert [response.finish_reason for response in responses] == [None, None, FinishReason.END_ID]


def test_same_seed_same_tokens_in_any_company():
    draw = Sampling(temperature=1.3, top_k=20, seed=11)
    alone = run(fake_session(), [request([3, 4], 12, sampling=draw)])[0]
    others = [request([7 + row], 5, sampling=Sampling(temperature=2.0, seed=row)) for row in range(3)]
    assert run(fake_session(max_num_tokens=4), [*others, request([3, 4], 12, sampling=draw)])[-1] == alone
    assert run(fake_session(), [request([3, 4], 12, sampling=Sampling(1.3, 20, seed=12))])[0] != alone


def test_logits_of_prompt_and_output():
    session = fake_session(gather_context_logits=True, max_num_tokens=5)
    prompt = list(range(10, 22))
    with BatchLoop(session) as loop:
        loop.enqueue_request(request(prompt, 3, context_logits=True, generation_logits=True))
        responses = []
        while not loop.idle:
            responses += loop.await_responses()
    assert responses[0].context_logits.shape == (12, 397)
    np.testing.assert_array_equal(responses[0].context_logits[-1], responses[0].generation_logits)
    assert [int(response.generation_logits.argmax()) for response in responses] == greedy_continuation(prompt, 3)


def test_cancelling_returns_blocks_and_leaves_the_others_alone():
    session = fake_session()
    with BatchLoop(session) as loop:
        first, second = (loop.enqueue_request(request([row + 3], 6)) for row in range(2))
        loop.await_responses()
        loop.cancel_request(first)
        loop.cancel_request(first)
        tokens = []
        while not loop.idle:
            tokens += [(entry.request_id, entry.token_id) for entry in loop.await_responses()]
    assert tokens == [(second, token) for token in greedy_continuation([4], 6)[1:]]


def test_blocks_come_back_when_a_step_fails():
    session = fake_session()
    session.executor.fail_at_step = 2
    with pytest.raises(RuntimeError, match="fire"):
        run(session, [request([5], 9), request([6], 9)])
    assert session.blocks.num_free == session.limits.num_blocks


def test_a_cache_held_by_another_loop_is_an_error():
    session = fake_session(RunnerOptions(max_tokens_in_paged_kv_cache=16))
    with BatchLoop(session) as first, BatchLoop(session) as second:
        first.enqueue_request(request([5], 10))
        first.await_responses()
        second.enqueue_request(request([5], 10))
        with pytest.raises(LimitError, match="KV cache blocks"):
            second.await_responses()
        first.close()
        assert second.await_responses()
