"""Generation over an event loop that steps when the test allows it: waiting, streaming, cancelling."""

import asyncio
import copy
import gc
import pickle
from dataclasses import asdict, replace

import numpy as np
import pytest

from trtllm_lite import RequestOutput
from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.api.generation import Generation
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.sampling_params import SamplingParams

from .doubles import fake_session, greedy_continuation

PROMPT = [3, 4]


@pytest.fixture
def session():
    session = fake_session()
    session.pump.loop.num_steps_allowed = 0
    return session


def start(session, streaming=True, **params):
    request = Request(np.array(PROMPT, np.int32), SamplingParams(max_tokens=4, ignore_eos=True, **params))
    return Generation(session, request, prompt=None, num_truncated_tokens=0, streaming=streaming)


def tokens_of(output):
    return [completion.token_ids for completion in output.outputs]


def test_each_step_is_an_output(session):
    generation = start(session)
    stream = iter(generation)
    for count in range(1, 5):
        session.pump.loop.step()
        output = next(stream)
        assert tokens_of(output) == [greedy_continuation(PROMPT, count)]
        assert output.finished == (count == 4)
        assert (output.metrics is None) == (count < 4)
    assert list(stream) == []
    # A second iteration starts at the beginning again.
    assert [len(output.outputs[0].token_ids) for output in generation] == [1, 2, 3, 4]


def test_all_continuations_advance_together(session):
    generation = start(session, n=3, temperature=1.5, seed=1)
    stream = iter(generation)
    session.pump.loop.step()
    assert [len(ids) for ids in tokens_of(next(stream))] == [1, 1, 1]
    session.pump.loop.num_steps_allowed = 3
    session.pump.loop.step()
    assert len(list(stream)) == 3


def test_the_outcome_is_what_there_is(session):
    generation = start(session)
    assert (tokens_of(generation.outcome()), generation.outcome().finished) == ([[]], False)
    session.pump.loop.step()
    next(iter(generation))
    assert tokens_of(generation.outcome()) == [greedy_continuation(PROMPT, 1)]
    with pytest.raises(TimeoutError):
        generation.result(timeout=0)
    generation.abort()
    output = generation.result()
    assert (output.outputs[0].finish_reason, output.error) == ("cancelled", None)
    assert tokens_of(output) == [greedy_continuation(PROMPT, 1)]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_cancelled_coroutine_cancels(session, streaming):
    generation = start(session, streaming)

    async def consume():
        async for _ in generation:
            pass

    async def run():
        task = asyncio.ensure_future(consume() if streaming else generation)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert generation.result().outputs[0].finish_reason == "cancelled"
    assert not session.pump.loop.running


def test_dropping_cancels(session):
    generation = start(session, n=2)
    stream = iter(generation)
    session.pump.loop.step()
    next(stream)
    del generation
    gc.collect()
    assert len(session.pump.loop.running) == 2
    del stream
    gc.collect()
    assert not session.pump.loop.running


def test_the_best_is_none_that_has_generated_nothing():
    session = fake_session(max_batch_size=2)
    generation = start(session, streaming=False, n=1, best_of=3, temperature=1.5, seed=1)
    output = generation.result()
    assert len(output.outputs[0].token_ids) == 4
    # The third sequence waits for its turn, and is cancelled before its turn comes.
    session.pump.loop.num_steps_allowed = 0
    generation = start(session, streaming=False, n=1, best_of=3, temperature=1.5, seed=1)
    session.pump.loop.step()
    wait_for_tokens(generation, 2)
    generation.cancel()
    assert len(generation.result().outputs[0].token_ids) == 1


def wait_for_tokens(generation, count):
    handles = generation._handles
    handles[0].notifier.wait_until(lambda: sum(len(handle.responses) for handle in handles) >= count)


@pytest.mark.parametrize("fail", [None, "too hot"])
def test_outputs_are_plain_data(session, fail):
    session.pump.loop.fail = fail
    session.pump.loop.num_steps_allowed = 9
    generation = start(session, streaming=False, n=2, logprobs=2, temperature=1.0, return_generation_logits=True)
    generation.wait()
    output = generation.outcome()
    for same in (pickle.loads(pickle.dumps(output)), copy.deepcopy(output)):
        assert isinstance(same, RequestOutput)
        assert [entry.token_ids for entry in same.outputs] == [entry.token_ids for entry in output.outputs]
        assert (same.metrics, str(same.error)) == (output.metrics, str(output.error))
    fields = asdict(output)
    assert fields["metrics"]["first_token_seconds"] == 0.5
    assert [entry["token_ids"] for entry in fields["outputs"]] == tokens_of(output)
    assert isinstance(fields["error"], EngineError) == bool(fail)


def test_an_output_keeps_what_there_was(session):
    """An output keeps its contents when the generation continues; new parts are computed with each output."""
    generation = start(session, logprobs=2)
    session.pump.loop.num_steps_allowed = 3
    session.pump.loop.step()
    outputs = [output.outputs[0] for output in generation]
    assert [len(output.token_ids) for output in outputs] == [1, 2, 3, 4]
    for count, output in enumerate(outputs, 1):
        assert output.token_ids == outputs[-1].token_ids[:count]
        assert output.logprobs == outputs[-1].logprobs[:count]
        assert output.logprobs_diff == outputs[-1].logprobs[count - 1 : count]
        assert output.cumulative_logprob == sum(
            row[token].logprob for token, row in zip(output.token_ids, output.logprobs, strict=True)
        )


def test_an_output_takes_time_for_what_is_new_alone(session, monkeypatch):
    rows = []

    def counted(tokens, new_rows):
        rows.append(len(new_rows))
        return [{}] * len(tokens)

    monkeypatch.setattr("trtllm_lite.runtime.api.request_output._all_logprobs", counted)
    generation = start(session, logprobs=2)
    session.pump.loop.num_steps_allowed = 3
    session.pump.loop.step()
    outputs = list(generation)
    assert rows == [1, 1, 1, 1]
    assert outputs[0].prompt_token_ids is outputs[-1].prompt_token_ids
    assert not {"text", "token_ids", "logprobs"} & set(vars(outputs[-1].outputs[0]))
    assert len(outputs[-1].outputs[0].logprobs) == 4
    assert rows == [1, 1, 1, 1, 4]


def test_an_output_does_not_keep_its_generation(session):
    generation = start(session, logprobs=1)
    session.pump.loop.step()
    output = next(iter(generation))
    del generation
    gc.collect()
    assert len(output.outputs[0].logprobs) == 1
    assert not session.pump.loop.running


def test_outputs_show_what_people_look_for(session):
    generation = start(session, logprobs=2)
    session.pump.loop.num_steps_allowed = 4
    session.pump.loop.step()
    output = generation.result()
    texts = [replace(output.outputs[0], text="</pre><b>" + "y" * 5000)]
    output = replace(output, prompt="<i>", outputs=texts)
    assert repr(output).startswith(
        f"<RequestOutput {output.request_id}: prompt of 2 tokens: '<i>', [<CompletionOutput 0:"
    )
    assert "4 tokens, finish_reason='length'>], finished>" in repr(output)
    assert len(repr(output)) < 1000
    page = output._repr_html_()
    assert "&lt;i&gt;</pre>" in page
    assert "<i>" not in page
    assert "4 tokens<br>length" in page
    assert f"first token after {output.metrics.first_token_seconds * 1e3:.1f} ms" in page
    assert "&lt;/pre&gt;&lt;b&gt;yyy" in page
