"""BatchLoop: what becomes of the events of a loop that several callers share."""

import threading

import numpy as np
import pytest

from trtllm_lite.errors import ArgumentError, EngineError
from trtllm_lite.runtime.batching import BatchLoop
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
        assert loop.await_responses() == []
    return list(tokens.values())


def test_each_request_gets_its_own_tokens():
    prompts = [[3 + row, 9] for row in range(9)]
    tokens = run(fake_session(), [request(prompt, 2 + row) for row, prompt in enumerate(prompts)])
    assert tokens == [greedy_continuation(prompt, 2 + row) for row, prompt in enumerate(prompts)]


def test_end_id_is_the_last_token():
    expected = greedy_continuation([9], 5)
    with BatchLoop(fake_session()) as loop:
        loop.enqueue_request(request([9], 5, end_ids=frozenset((expected[2],))))
        responses = [loop.await_responses()[0] for _ in range(3)]
        assert loop.idle
    assert [response.token_id for response in responses] == expected[:3]
    assert [response.finish_reason for response in responses] == [None, None, FinishReason.END_ID]


def test_same_seed_same_tokens_in_any_company():
    draw = Sampling(temperature=1.3, top_k=20, seed=11)
    alone = run(fake_session(), [request([3, 4], 12, sampling=draw)])[0]
    others = [request([7 + row], 5, sampling=Sampling(temperature=2.0, seed=row)) for row in range(3)]
    assert run(fake_session(), [*others, request([3, 4], 12, sampling=draw)])[-1] == alone
    assert run(fake_session(), [request([3, 4], 12, sampling=Sampling(1.3, 20, seed=12))])[0] != alone


def test_logits_of_prompt_and_output():
    prompt = list(range(10, 22))
    with BatchLoop(fake_session()) as loop:
        loop.enqueue_request(request(prompt, 3, context_logits=True, generation_logits=True))
        responses = []
        while not loop.idle:
            responses += loop.await_responses()
    assert responses[0].context_logits.shape == (12, 397)
    assert [response.context_logits is None for response in responses] == [False, True, True]
    np.testing.assert_array_equal(responses[0].context_logits[-1], responses[0].generation_logits)
    assert [int(response.generation_logits.argmax()) for response in responses] == greedy_continuation(prompt, 3)


def test_cancelled_requests_are_heard_of_no_more():
    with BatchLoop(fake_session()) as loop:
        first, second = (loop.enqueue_request(request([row + 3], 6)) for row in range(2))
        loop.await_responses()
        loop.cancel_request(first)
        loop.cancel_request(first)
        tokens = []
        while not loop.idle:
            tokens += [(entry.request_id, entry.token_id) for entry in loop.await_responses()]
    assert tokens == [(second, token) for token in greedy_continuation([4], 6)[1:]]


def test_a_failed_request_is_an_error_and_the_session_lives_on():
    session = fake_session()
    session.router.loop.fail = "logits are NaN"
    with pytest.raises(EngineError, match="logits are NaN"):
        run(session, [request([5], 9), request([6], 9)])
    session.router.loop.fail = None
    assert run(session, [request([5], 3)]) == [greedy_continuation([5], 3)]


def test_sampling_out_of_range_is_refused_before_it_runs():
    session = fake_session()
    with pytest.raises(ArgumentError, match="temperature"):
        run(session, [request([5], 9, sampling=Sampling(temperature=1000.0))])
    assert session.router.loop.num_submitted == 0


def test_leaving_ends_what_is_left_of_this_loop_only():
    session = fake_session()
    with BatchLoop(session) as kept:
        kept.enqueue_request(request([4], 6))
        with BatchLoop(session) as left:
            left.enqueue_request(request([3], 30))
            left.await_responses()
        assert len(session.router.loop.running) == 1
        tokens = []
        while not kept.idle:
            tokens += [entry.token_id for entry in kept.await_responses()]
    assert tokens == greedy_continuation([4], 6)


def test_threads_share_a_session():
    session = fake_session()
    results = {}
    prompts = [[3 + row] for row in range(8)]

    def work(row):
        results[row] = run(session, [request(prompts[row], 9)])

    threads = [threading.Thread(target=work, args=(row,)) for row in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[row] for row in range(8)] == [[greedy_continuation(prompt, 9)] for prompt in prompts]
