"""The event pump serves several threads and coroutines, and cancels requests that nothing waits for."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trtllm_lite.errors import ArgumentError, EngineError, LimitError
from trtllm_lite.runtime.session.notifier import Mailbox, Notifier
from trtllm_lite.runtime.session.request import FinishReason, Request
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.runtime.session.sampling_params import SamplingParams

from .doubles import fake_session, greedy_continuation
from .texts import byte_level_tokenizer

REPOSITORY = Path(__file__).parents[3]


def request(prompt, count, **params):
    return Request(np.array(prompt, np.int32), SamplingParams(max_tokens=count, ignore_eos=True, **params))


def tokens_of(handle):
    return [response.token_id for response in handle.result()]


def paused_session(**arguments):
    session = fake_session(**arguments)
    session.pump.loop.num_steps_allowed = 0
    return session


def test_each_request_gets_its_own_tokens():
    session = fake_session()
    prompts = [[3 + row, 9] for row in range(9)]
    handles = [session.submit(request(prompt, 2 + row)) for row, prompt in enumerate(prompts)]
    assert [tokens_of(handle) for handle in handles] == [
        greedy_continuation(prompt, 2 + row) for row, prompt in enumerate(prompts)
    ]


def test_the_last_response_says_why():
    expected = greedy_continuation([9], 5)
    responses = list(fake_session().submit(request([9], 5, stop_token_ids=[expected[2]])))
    assert [response.token_id for response in responses] == expected[:3]
    assert [response.finish_reason for response in responses] == [None, None, FinishReason.END_ID]
    assert fake_session().submit(request([9], 5)).result()[-1].finish_reason is FinishReason.LENGTH


def test_same_seed_same_tokens_in_any_company():
    draw = {"temperature": 1.3, "top_k": 20, "seed": 11}
    alone = tokens_of(fake_session().submit(request([3, 4], 12, **draw)))
    session = fake_session()
    handles = [session.submit(request([7 + row], 5, temperature=2.0, seed=row)) for row in range(3)]
    assert tokens_of(session.submit(request([3, 4], 12, **draw))) == alone
    assert tokens_of(session.submit(request([3, 4], 12, **{**draw, "seed": 12}))) != alone
    assert [len(tokens_of(handle)) for handle in handles] == [5] * 3


def test_logits_of_prompt_and_output():
    prompt = list(range(10, 22))
    session = fake_session(gather_context_logits=True)
    handle = session.submit(request(prompt, 3, return_context_logits=True, return_generation_logits=True))
    responses = handle.result()
    assert handle.context_logits.shape == (12, 397)
    np.testing.assert_array_equal(handle.context_logits[-1], responses[0].generation_logits)
    assert [int(response.generation_logits.argmax()) for response in responses] == greedy_continuation(prompt, 3)


def test_a_cancelled_request_keeps_what_it_has():
    session = paused_session()
    first, second = (session.submit(request([row + 3], 6)) for row in range(2))
    session.pump.loop.step()
    assert next(iter(first)).token_id == greedy_continuation([3], 1)[0]
    first.cancel()
    first.cancel()
    assert [response.token_id for response in first] == [*greedy_continuation([3], 1), None]
    assert first.finish_reason is FinishReason.CANCELLED
    for _ in range(5):
        session.pump.loop.step()
    assert tokens_of(second) == greedy_continuation([4], 6)
    second.cancel()
    assert second.finish_reason is FinishReason.LENGTH


def test_waiting_may_time_out():
    handle = paused_session().submit(request([3], 2))
    with pytest.raises(TimeoutError, match="not ended"):
        handle.result(timeout=0)


def test_a_failed_request_is_its_own_error_and_the_session_lives_on():
    session = fake_session()
    session.pump.loop.fail = "logits are NaN"
    handles = [session.submit(request([5], 9)), session.submit(request([6], 9))]
    for handle in handles:
        with pytest.raises(EngineError, match="logits are NaN"):
            list(handle)
    session.pump.loop.fail = None
    assert tokens_of(session.submit(request([5], 3))) == greedy_continuation([5], 3)


def test_an_error_in_the_handling_of_one_request_ends_that_one_alone():
    session = paused_session(tokenizer=byte_level_tokenizer())
    broken, fine = session.submit(request([5], 4)), session.submit(request([6], 4))
    broken.collect = None
    for _ in range(4):
        session.pump.loop.step()
    assert tokens_of(fine) == greedy_continuation([6], 4)
    with pytest.raises(EngineError, match="not callable"):
        broken.result()
    assert not session.pump.loop.running


def test_a_broken_loop_ends_whoever_waits_with_an_error():
    session = paused_session()
    handles = [session.submit(request([row], 9)) for row in range(3)]
    session.pump.loop.broken = RuntimeError("no more events")
    session.pump.loop.step()
    for handle in handles:
        with pytest.raises(EngineError, match="no more events"):
            handle.result()
    with pytest.raises(EngineError, match="open the engine again"):
        session.submit(request([3], 9))


def test_sampling_out_of_range_is_refused_before_it_runs():
    session = fake_session()
    with pytest.raises(ArgumentError, match="stop_token_ids must hold token ids from 0 to 396, not 397"):
        session.submit(request([5], 9, stop_token_ids=[397]))
    with pytest.raises(LimitError, match="prompt 1 has 25 tokens, which exceeds max_input_len 24"):
        session.submit_all([request([5], 9), request([5] * 25, 1)])
    assert session.pump.loop.num_submitted == 0


def test_a_handle_that_nobody_holds_is_cancelled():
    session = paused_session()
    kept, dropped = session.submit(request([4], 6)), session.submit(request([3], 30))
    assert len(session.pump.loop.running) == 2
    del dropped
    gc.collect()
    assert [entry.tokens for entry in session.pump.loop.running] == [[4]]
    assert kept.finish_reason is None


def test_the_end_is_told_once_to_whom_a_request_names():
    ends = []

    def note(request, reason, timings):
        ends.append((request.prompt_ids[0], reason, timings.num_generated_tokens))

    session = fake_session(tokenizer=byte_level_tokenizer())
    told = replace(request([9], 2), on_end=note)
    session.submit(told).result()
    stop = session.tokenizer.decode(greedy_continuation([8], 1))
    session.submit(replace(request([8], 5, stop=stop), on_end=note)).result()
    session.pump.loop.num_steps_allowed = 0
    failed = session.submit(replace(told, prompt_ids=np.array([7], np.int32)))
    session.pump.loop.broken = RuntimeError("lost")
    session.pump.loop.step()
    with pytest.raises(EngineError, match="lost"):
        failed.result()
    assert [end[:2] for end in ends] == [(9, FinishReason.LENGTH), (8, FinishReason.STOP_WORDS), (7, None)]
    assert [end[2] for end in ends][::2] == [2, 0]


def test_the_end_of_a_request_that_never_ran_is_told_once():
    ends = []
    asked = replace(request([9], 2), on_end=lambda _, reason, timings: ends.append((reason, timings.total_seconds)))
    session = fake_session()
    handles = [RequestHandle(asked, None, None, SimpleNamespace, Notifier(), session.cancel) for _ in range(2)]
    handles[0].text = SimpleNamespace(finish=lambda: "", match=None)
    for _ in range(2):
        handles[0].end_unstarted("TIMED_OUT")
        handles[1].end_with(EngineError("no adapter"))
    assert ends == [(FinishReason.TIMEOUT, 0.0), (None, 0.0)]


def test_threads_share_a_session():
    session = fake_session()
    results = {}

    def work(row):
        results[row] = tokens_of(session.submit(request([3 + row], 9)))

    threads = [threading.Thread(target=work, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[row] for row in range(8)] == [greedy_continuation([3 + row], 9) for row in range(8)]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_one_thread_loses_nothing_of_another():
    session = paused_session()
    mine, others = session.submit(request([3], 5)), session.submit(request([4], 5))
    tokens = []
    thread = threading.Thread(target=lambda: tokens.extend(tokens_of(others)))
    thread.start()
    main = threading.get_ident()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal may arrive before the wait begins
        threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGINT)).start()
        mine.result()
    for _ in range(5):
        session.pump.loop.step()
    thread.join()
    assert tokens == greedy_continuation([4], 5)
    assert tokens_of(mine) == greedy_continuation([3], 5)


def test_coroutines_share_a_session():
    session = fake_session()

    async def consume(row):
        return [response.token_id async for response in session.submit(request([3 + row], 4 + row))]

    async def consume_all():
        return await asyncio.gather(*(consume(row) for row in range(6)))

    assert asyncio.run(consume_all()) == [greedy_continuation([3 + row], 4 + row) for row in range(6)]


def test_coroutines_hear_of_errors():
    session = fake_session()
    session.pump.loop.fail = "logits are NaN"

    async def consume():
        async for _ in session.submit(request([3], 4)):
            pass

    with pytest.raises(EngineError, match="logits are NaN"):
        asyncio.run(consume())


def test_close_cancels_and_joins():
    session = paused_session()
    handle = session.submit(request([3], 4))
    session.close()
    session.close()
    assert handle.result()[-1].finish_reason is FinishReason.CANCELLED
    assert not session.pump._thread.is_alive()


def test_the_thread_ends_with_the_last_holder_of_the_session():
    session = paused_session()
    thread, alive = session.pump._thread, weakref.ref(session)
    handle = session.submit(request([3], 2))
    del session
    gc.collect()
    assert alive() is not None
    assert handle.finish_reason is None
    del handle
    gc.collect()
    assert alive() is None
    thread.join()


def test_an_interpreter_with_a_running_request_exits():
    code = (
        "import numpy as np\n"
        "from tests.unit.runtime.doubles import fake_session\n"
        "from trtllm_lite.runtime.session.request import Request\n"
        "session = fake_session()\n"
        "session.pump.loop.num_steps_allowed = 0\n"
        "handle = session.submit(Request(np.array([3], np.int32)))\n"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (0, "")


def test_latencies_are_means_over_requests_and_tokens():
    session = fake_session()
    for count in (1, 3):
        session.submit(request([3], count)).result()
    overall = session.pump.latencies.overall()
    assert (overall.num_requests, overall.queue_seconds, overall.first_token_seconds) == (2, 0.25, 0.5)
    assert (overall.total_seconds, overall.seconds_per_token) == (1.0, 0.125)
    assert session.pump.latencies.recent() == overall


def test_one_call_wakes_all_coroutines_of_a_step(monkeypatch):
    session = paused_session()

    async def tokens_of_all():
        loop, calls = asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *given: (calls.append(given), wake(*given)))
        num_rows = session.pump.loop.max_batch_size
        streams = [aiter(session.submit(request([3 + row], 2))) for row in range(num_rows)]
        for _ in range(2):
            waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
            await asyncio.sleep(0)  # all of them wait now
            session.pump.loop.step()
            await asyncio.gather(*waiting)
        return len(calls)

    assert asyncio.run(tokens_of_all()) == 2


def test_a_mailbox_hears_once_a_step_of_all_requests_that_changed():
    session = paused_session()

    async def steps_heard():
        heard = asyncio.Queue()
        mailbox = Mailbox(asyncio.get_running_loop(), heard.put_nowait)
        handles = session.submit_all([request([3], 2), request([4], 3)], mailbox)
        for _ in range(3):
            session.pump.loop.step()
        return handles, [await heard.get() for _ in range(3)], heard.empty()

    handles, heard, nothing_else = asyncio.run(steps_heard())
    assert [list(map(handles.index, step)) for step in heard] == [[0, 1], [0, 1], [1]]
    assert nothing_else
    assert all(handle.ended for handle in handles)
