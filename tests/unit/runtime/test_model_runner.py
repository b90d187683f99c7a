"""ModelRunner over a stand-in executor: names, forms of input and output, limits, streaming."""

import gc

import numpy as np
import pytest

from trtllm_lite.errors import ArgumentError, LimitError, TrtllmLiteError
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.limits import RunnerOptions

from .doubles import END_ID, fake_runner, greedy_continuation
from .texts import byte_level_tokenizer

PROMPTS = [[3, 4, 5], [9]]


@pytest.fixture
def runner():
    return fake_runner(tokenizer=byte_level_tokenizer())


def idle(runner):
    return not runner.session.router.loop.running


def test_token_ids_in_padded_array_out(runner):
    output_ids = runner.generate(PROMPTS, max_new_tokens=[2, 6], end_id=-1, pad_id=-1)
    assert output_ids.shape == (2, 1, 7)
    assert output_ids[0, 0].tolist() == [3, 4, 5, *greedy_continuation([3, 4, 5], 2), -1, -1]
    assert output_ids[1, 0].tolist() == [9, *greedy_continuation([9], 6)]


@pytest.mark.parametrize("prompts", [np.array([[3, 4, 5]]), [np.array([3, 4, 5], np.int64)], ((3, 4, 5),)])
def test_prompts_may_be_arrays(runner, prompts):
    assert runner.generate(prompts, max_new_tokens=1)[0, 0, :3].tolist() == [3, 4, 5]


def test_return_dict(runner):
    ends = greedy_continuation([9], 6)[3]
    result = runner.generate(
        PROMPTS, max_new_tokens=6, end_id=[-1, ends], return_dict=True, output_sequence_lengths=True
    )
    assert result["sequence_lengths"].tolist() == [[9], [5]]
    assert result["finish_reasons"] == [["length"], ["end_id"]]
    assert result["output_ids"][1][0][:5].tolist() == [9, *greedy_continuation([9], 4)]
    assert set(result) == {"output_ids", "sequence_lengths", "finish_reasons"}


def test_end_ids_and_length_come_from_the_engine(runner):
    result = runner.generate(PROMPTS, return_dict=True)
    for prompt, row, (length,) in zip(PROMPTS, result["output_ids"], result["sequence_lengths"], strict=True):
        assert row[0, len(prompt) : length].tolist() == greedy_continuation(prompt, 40 - len(prompt), END_ID)


def test_text_in_text_out(runner):
    ids = runner.tokenizer.encode("the fox")
    expected = runner.tokenizer.decode(greedy_continuation(ids, 8))
    assert runner.generate("the fox", max_new_tokens=8, end_id=-1) == expected
    assert runner.generate(["the fox"], max_new_tokens=8, end_id=-1) == [expected]
    assert runner.generate(texts=["the fox"], max_new_tokens=8, end_id=-1) == [expected]
    result = runner.generate(["the fox"], max_new_tokens=8, end_id=-1, return_dict=True)
    assert result["texts"] == [expected]


def test_chat(runner):
    prompt = "<|begin|><|user|>hi<|end|>"
    ids = runner.tokenizer.encode(prompt, add_special_tokens=False)
    expected = runner.tokenizer.decode(greedy_continuation(ids, 8))
    messages = [{"role": "user", "content": "hi"}]
    for given in ("hi", messages):
        assert runner.generate(given, chat=True, max_new_tokens=8, end_id=-1) == expected
    assert runner.generate([messages, "hi"], chat=True, max_new_tokens=8, end_id=-1) == [expected] * 2


def test_streaming_ids_hold_everything_so_far(runner):
    arguments = {"max_new_tokens": [3, 5], "end_id": -1}
    partial = list(runner.generate(PROMPTS, streaming=True, **arguments))
    assert len(partial) == 5
    assert partial[0].shape == (2, 1, 4)
    np.testing.assert_array_equal(partial[-1], runner.generate(PROMPTS, **arguments))
    last = list(runner.generate(PROMPTS, streaming=True, return_dict=True, **arguments))[-1]
    assert last["finish_reasons"] == [["length"], ["length"]]


def test_streaming_texts_hold_what_is_new(runner):
    arguments = {"max_new_tokens": 12, "end_id": -1}
    assert "".join(runner.generate("the fox", streaming=True, **arguments)) == runner.generate("the fox", **arguments)
    pieces = list(runner.generate(["the fox", "and"], streaming=True, **arguments))
    assert ["".join(row) for row in zip(*pieces, strict=True)] == runner.generate(["the fox", "and"], **arguments)


@pytest.mark.parametrize("as_text", [False, True])
def test_stop_words_end_the_text_before_and_the_ids_after(runner, as_text):
    ids = runner.tokenizer.encode("the")
    tokens = greedy_continuation(ids, 16)
    pieces = [runner.tokenizer.decode([token]) for token in tokens]
    cut = next(
        i for i in range(3, 16) if pieces[i].isascii() and pieces[i].strip() and "".join(pieces).count(pieces[i]) == 1
    )
    word = pieces[cut] if as_text else [tokens[cut]]
    arguments = {"max_new_tokens": 16, "end_id": -1, "stop_words_list": [word]}
    result = runner.generate(["the"], return_dict=True, **arguments)
    assert result["finish_reasons"] == [["stop_words"]]
    assert result["texts"] == [runner.tokenizer.decode(tokens[:cut])]
    assert result["output_ids"][0, 0].tolist() == ids + tokens[: cut + 1]
    assert "".join(runner.generate("the", streaming=True, **arguments)) == result["texts"][0]
    assert idle(runner)


def test_logits():
    runner = fake_runner(gather_context_logits=True)
    result = runner.generate(
        PROMPTS, max_new_tokens=2, return_dict=True, output_context_logits=True, output_generation_logits=True
    )
    assert [logits.shape for logits in result["context_logits"]] == [(3, 397), (1, 397)]
    assert result["generation_logits"][0][0].argmax(axis=1).tolist() == greedy_continuation([3, 4, 5], 2)


def test_logits_that_cannot_be_had(runner):
    with pytest.raises(ArgumentError, match="--gather_context_logits"):
        runner.generate(PROMPTS, return_dict=True, output_context_logits=True)
    with pytest.raises(ArgumentError, match="return_dict"):
        runner.generate(PROMPTS, output_generation_logits=True)


@pytest.mark.parametrize("prompts", [PROMPTS, ["the", "fox"]])
def test_abandoned_generators_end_their_requests(runner, prompts):
    stream = runner.generate(prompts, max_new_tokens=9, end_id=-1, streaming=True)
    next(stream)
    assert not idle(runner)
    del stream
    gc.collect()
    assert idle(runner)
    list(zip(range(2), runner.generate(prompts, max_new_tokens=9, streaming=True), strict=False))
    gc.collect()
    assert idle(runner)


def test_interleaved_generators(runner):
    streams = [runner.generate([prompt], max_new_tokens=5, end_id=-1, streaming=True) for prompt in PROMPTS]
    for partial in zip(*streams, strict=True):
        last = partial
    for prompt, output_ids in zip(PROMPTS, last, strict=True):
        assert output_ids[0, 0].tolist() == prompt + greedy_continuation(prompt, 5)


@pytest.mark.parametrize(
    ("prompts", "arguments", "numbers"),
    [
        ([[3]] * 5, {}, "5 prompts exceed max_batch_size 4"),
        ([[3] * 25], {}, "25 tokens, which exceeds max_input_len 24"),
        ([[3] * 20], {"max_new_tokens": 21}, r"20 tokens and asks for 21 more, which exceeds max_seq_len \(40"),
        (
            [[3]],
            {"max_new_tokens": 40},
            r"asks for 40 more, which exceeds max_seq_len \(40 tokens\): ask for at most 39",
        ),
    ],
)
def test_limits_are_errors_before_anything_runs(runner, prompts, arguments, numbers):
    for streaming in (False, True):
        with pytest.raises(LimitError, match=numbers):
            runner.generate(prompts, streaming=streaming, **arguments)
    assert runner.session.router.loop.num_submitted == 0


def test_options_tighten_the_limits():
    runner = fake_runner(RunnerOptions(max_output_len=5, max_tokens_in_paged_kv_cache=16))
    assert runner.generate([[3]], end_id=-1).shape == (1, 1, 6)
    with pytest.raises(LimitError, match="max_output_len"):
        runner.generate([[3]], max_new_tokens=6)
    with pytest.raises(LimitError, match=r"the KV cache \(16 tokens\)"):
        runner.generate([[3] * 13], max_new_tokens=4)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "no prompts"),
        ([[]], "prompt 0 is empty"),
        ([[3], []], "prompt 1 is empty"),
        ([""], "prompt 0 is empty"),
        (["a\udcff"], "not valid Unicode"),
        ([[3, 397]], "token id 397: expected 0 to 396"),
        ([[-1]], "token id -1"),
        ([[0.5]], "dtype float64"),
        ([[[3]]], "one dimension"),
        ([3, 4], r"single value 3.*\[prompt\]"),
        ([[3], "x"], "do not mix"),
        (["x", [3]], "list among strings"),
        ([{"role": "user", "content": "x"}], "chat=True"),
        ([[3, [4]]], "not a list of token ids"),
        (7, "the prompts are int"),
        ({"a": 1}, "the prompts are dict"),
    ],
)
def test_malformed_prompts_are_refused(runner, prompts, message):
    with pytest.raises(ArgumentError, match=message):
        runner.generate(prompts)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "9", [1]])
def test_malformed_lengths_are_refused(runner, count):
    with pytest.raises(ArgumentError, match="max_new_tokens"):
        runner.generate(PROMPTS, max_new_tokens=count)


def test_text_needs_a_tokenizer():
    with pytest.raises(ArgumentError, match="no tokenizer"):
        fake_runner().generate("hello")
    with pytest.raises(ArgumentError, match="stop words as token ids"):
        fake_runner().generate(PROMPTS, stop_words_list=["x"])


def test_neutral_values_of_unsupported_arguments_are_accepted(runner):
    runner.generate(
        PROMPTS,
        max_new_tokens=1,
        num_beams=1,
        num_return_sequences=None,
        repetition_penalty=1.0,
        output_log_probs=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_beams": 4}, "num_beams=4 is not supported: beam search"),
        ({"num_return_sequences": 2}, "random_seeds"),
        ({"repetition_penalty": 1.1}, "not supported yet"),
        ({"bad_words_list": [[1]]}, "banning words"),
        ({"output_log_probs": True}, "output_generation_logits"),
        ({"lora_uids": ["x"]}, "merge the adapter"),
        ({"sampling_config": {}}, "as arguments"),
        ({"max_new_token": 3}, "did you mean max_new_tokens"),
        ({"texts": ["x"]}, "either batch_input_ids or texts"),
    ],
)
def test_other_arguments_are_errors(runner, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        runner.generate(PROMPTS, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lora_dir": "x"}, "merge the adapter"),
        ({"kv_cache_enable_block_reuse": True}, "pass False"),
        ({"max_beam_width": 2}, "beam search"),
        ({"cuda_graph_mode": True}, "runs on a CPU"),
        ({"kv_cache_free_gpu_memory_fracton": 0.5}, "did you mean kv_cache_free_gpu_memory_fraction"),
    ],
)
def test_from_dir_refuses_what_it_cannot_do(arguments, message, tmp_path):
    with pytest.raises(ArgumentError, match=message):
        ModelRunner.from_dir(tmp_path, **arguments)


def test_ignored_generation_defaults_are_said(tmp_path):
    with pytest.raises(TrtllmLiteError):
        ModelRunner.from_dir(tmp_path, enable_chunked_context=False, cuda_graph_mode=False, max_beam_width=1)
