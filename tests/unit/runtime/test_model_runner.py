"""ModelRunner over a stand-in executor: names, forms of input and output, limits, streaming."""

import gc

import numpy as np
import pytest

from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.session.config import KvCacheConfig
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.text.chat import ChatTemplate
from trtllm_lite.runtime.text.tokenizer import Tokenizer

from .doubles import END_ID, fake_runner, greedy_continuation, logits_after
from .texts import byte_level_tokenizer

PROMPTS = [[3, 4, 5], [9]]


@pytest.fixture
def runner():
    return fake_runner(tokenizer=byte_level_tokenizer())


def idle(runner):
    return not runner.session.pump.loop.running


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
    assert result["prompt_lengths"].tolist() == [3, 1]
    assert set(result) == {"output_ids", "sequence_lengths", "prompt_lengths", "finish_reasons"}


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


def test_sampling_config_has_what_is_not_given(runner):
    config = {"max_new_tokens": 3, "end_id": -1, "pad_id": 7, "temperature": None}
    result = runner.generate(PROMPTS, sampling_config=config, max_new_tokens=[2, 4])
    assert result[0, 0].tolist() == [3, 4, 5, *greedy_continuation([3, 4, 5], 2)]
    assert runner.generate(PROMPTS, sampling_config=config).shape == (2, 1, 6)


def test_several_sequences_of_a_prompt(runner):
    arguments = {"max_new_tokens": 5, "end_id": -1, "temperature": 1.5, "top_k": 0, "random_seed": [1, 2]}
    result = runner.generate(PROMPTS, num_return_sequences=3, return_dict=True, output_cum_log_probs=True, **arguments)
    assert result["output_ids"].shape == (2, 3, 8)
    assert result["sequence_lengths"].tolist() == [[8] * 3, [6] * 3]
    assert len({tuple(row) for row in result["output_ids"][0].tolist()}) == 3
    assert result["cum_log_probs"].shape == (2, 3)
    # The first sequence is the one that the seed gives when only one is asked for.
    alone = runner.generate(PROMPTS, **arguments)
    np.testing.assert_array_equal(alone[:, 0], result["output_ids"][:, 0])
    texts = runner.generate(["the", "fox"], num_return_sequences=2, **arguments)
    assert [len(row) for row in texts] == [2, 2]
    pieces = list(runner.generate(["the", "fox"], num_return_sequences=2, streaming=True, **arguments))
    assert [["".join(piece[row][index] for piece in pieces) for index in range(2)] for row in range(2)] == texts


def test_log_probabilities_of_the_tokens(runner):
    result = runner.generate(PROMPTS, max_new_tokens=4, end_id=-1, return_dict=True, output_log_probs=True)
    for prompt, (found,) in zip(PROMPTS, result["log_probs"], strict=True):
        tokens = greedy_continuation(prompt, 4)
        for position, token in enumerate(tokens):
            logits = logits_after(prompt + tokens[:position]).astype(np.float64)
            assert found[position] == pytest.approx(logits[token] - np.log(np.exp(logits).sum()), rel=1e-5)


def test_banned_words_do_not_appear(runner):
    first = greedy_continuation([9], 1)[0]
    result = runner.generate([[9]], max_new_tokens=1, end_id=-1, bad_words_list=[[first]])
    assert result[0, 0, 1] == np.argsort(logits_after([9]))[-2]
    runner.generate("the", max_new_tokens=2, bad_words_list=["fox"])


def test_the_models_repetition_penalty_applies():
    arguments = {"max_new_tokens": 12, "end_id": -1}
    plain = fake_runner().generate(PROMPTS, **arguments)
    default = fake_runner(generation={"repetition_penalty": 1.9}).generate(PROMPTS, **arguments)
    assert plain.tolist() != default.tolist()
    assert fake_runner().generate(PROMPTS, repetition_penalty=1.9, **arguments).tolist() == default.tolist()
    neutral = fake_runner(generation={"repetition_penalty": 1.9}).generate(PROMPTS, repetition_penalty=1, **arguments)
    assert neutral.tolist() == plain.tolist()


def test_logits_that_cannot_be_had(runner):
    with pytest.raises(ArgumentError, match="--gather_context_logits"):
        runner.generate(PROMPTS, return_dict=True, output_context_logits=True)
    with pytest.raises(ArgumentError, match="return_dict"):
        runner.generate(PROMPTS, output_generation_logits=True)


@pytest.mark.parametrize("prompts", [PROMPTS, ["the", "fox"]])
def test_abandoned_generators_end_their_requests(runner, prompts):
    loop = runner.session.pump.loop
    loop.num_steps_allowed = 0
    for leave_early in (False, True):
        stream = runner.generate(prompts, max_new_tokens=9, end_id=-1, streaming=True)
        loop.step()
        next(stream)
        assert not idle(runner)
        if leave_early:
            stream.close()
        del stream
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
    assert runner.session.pump.loop.num_submitted == 0


def test_options_tighten_the_limits():
    runner = fake_runner(RunnerOptions(max_output_len=5, kv_cache=KvCacheConfig(max_tokens=16)))
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
        ({"a": 1}, "a prompt is a dictionary with 'a': expected"),
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
        ({"num_beams": 0}, "num_beams is 0"),
        ({"num_beams": 2, "temperature": 0.5}, "temperature must be 0 or 1 with beam search"),
        ({"num_beams": 2, "num_return_sequences": 3}, "n not above best_of"),
        ({"num_beams": 2, "stop_words_list": ["x"]}, "or use stop_token_ids"),
        ({"num_beams": 2, "early_stopping": "soon"}, "early_stopping is 'soon'"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0: expected a whole number from 1 to 128"),
        ({"repetition_penalty": 1000.0}, "repetition_penalty must be from 0.01 to 100, not 1000"),
        ({"bad_words_list": [[397]]}, "must hold token ids from 0 to 396"),
        ({"output_log_probs": True}, "return_dict"),
        ({"temperature": [1.0]}, "temperature has 1 values for 2 prompts"),
        ({"random_seed": -1}, "random_seed is -1"),
        ({"lora_uids": ["x", None]}, "lora_uids has 'x'"),
        ({"lora_uids": ["-1"]}, "lora_uids has 1 entries for 2 prompts"),
        ({"sampling_config": {"beams": 1}}, "no argument 'beams'"),
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
        ({"lora_dir": 3}, "lora_dir is 3"),
        ({"kv_cache_enable_block_reuse": 1}, "expected True or False"),
        ({"capacity_scheduler_policy": "STATIC_BATCH"}, "expected one of GUARANTEED_NO_EVICT, MAX_UTILIZATION"),
        ({"max_beam_width": 0}, "max_beam_width is 0"),
        ({"cuda_graph_mode": True}, "choose this themselves"),
        ({"kv_cache_free_gpu_memory_fracton": 0.5}, "did you mean kv_cache_free_gpu_memory_fraction"),
    ],
)
def test_from_dir_refuses_what_it_cannot_do(arguments, message, tmp_path):
    with pytest.raises(ArgumentError, match=message):
        ModelRunner.from_dir(tmp_path, **arguments)


@pytest.mark.parametrize("given", [{}, {"temperature": 0.8}, {"temperature": 1.5, "min_p": 0.1}, {"top_k": 1}])
def test_greedy_unless_top_k_or_top_p_is_given_whatever_the_model_prefers(given):
    runner = fake_runner(generation={"do_sample": True, "temperature": 2.0, "top_p": 0.9})
    ids = runner.generate([[9]], max_new_tokens=8, end_id=-1, num_return_sequences=2, random_seed=3, **given)
    assert ids[0, :, 1:].tolist() == [greedy_continuation([9], 8)] * 2


@pytest.mark.parametrize("given", [{"top_k": 0}, {"top_p": 1.0}, {"top_k": 300, "temperature": 1.0, "min_p": 0.0}])
def test_draws_take_the_defaults_of_tensorrt_llm(given):
    runner = fake_runner(generation={"do_sample": True, "temperature": 0.01, "top_k": 1})
    ids = runner.generate([[9]], max_new_tokens=8, end_id=-1, num_return_sequences=4, random_seed=3, **given)
    assert len({tuple(row) for row in ids[0].tolist()}) == 4
    with pytest.raises(ArgumentError, match="temperature is 'hot'"):
        runner.generate([[9]], temperature="hot")


def test_prompts_may_be_dictionaries(runner):
    expected = runner.generate(["the fox"], max_new_tokens=5, end_id=-1)
    ids = runner.tokenizer.encode("the fox")
    assert runner.generate([{"prompt": "the fox"}], max_new_tokens=5, end_id=-1) == expected
    assert runner.generate({"prompt": "the fox"}, max_new_tokens=5, end_id=-1) == expected[0]
    rows = runner.generate([{"prompt_token_ids": ids}], max_new_tokens=5, end_id=-1)
    assert rows.tolist() == runner.generate([ids], max_new_tokens=5, end_id=-1).tolist()
    for wrong, message in (
        ({"prompt": "x", "multi_modal_data": {}}, "with 'multi_modal_data'"),
        ({}, "without entries"),
        ({"role": "user", "content": "x"}, "messages need chat=True"),
        ({"prompt": 5}, "prompt 0 is the single value 5"),
    ):
        with pytest.raises(ArgumentError, match=message):
            runner.generate([wrong])


def test_templates_get_tools_and_arguments(runner, monkeypatch):
    source = "{{ tools[0].name }} {{ enable_thinking }}"
    template = ChatTemplate({"default": source, "rag": f"{{# named #}}{source}!"}, {})
    monkeypatch.setattr(runner.tokenizer, "chat_template", template)
    expected = runner.generate("fox False", max_new_tokens=5, end_id=-1)
    names = {"tools": [{"name": "fox"}], "chat_template_kwargs": {"enable_thinking": False}}
    assert runner.generate("x", chat=True, max_new_tokens=5, end_id=-1, **names) == expected
    named = runner.generate("x", chat=True, chat_template="rag", max_new_tokens=5, end_id=-1, **names)
    assert named == runner.generate("fox False!", max_new_tokens=5, end_id=-1)
    for given in ({"tools": []}, {"chat_template_kwargs": {}}, {"chat_template": "default"}):
        with pytest.raises(ArgumentError, match="pass chat=True too"):
            runner.generate("x", **given)


def test_text_that_cannot_fit_is_refused_before_it_is_tokenized(runner, monkeypatch):
    with pytest.raises(LimitError, match=r"the prompt has \d+ tokens, which exceeds max_input_len 24"):
        runner.generate(["x" * (24 * 32)])
    monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("must not tokenize"))
    for count in (1, 2):
        with pytest.raises(
            LimitError, match="prompt 0 has 769 characters, which exceeds the 768 that max_input_len 24"
        ):
            runner.generate(["x" * (24 * 32 + 1)] * count)
    monkeypatch.setitem(vars(runner.tokenizer), "max_token_chars", 100)
    with pytest.raises(LimitError, match="the prompt has 2,401 characters, which exceeds the 2,400 that"):
        runner.generate("x" * 2401)
    with pytest.raises(LimitError, match="the prompt has 10,000,000 characters"):
        runner.generate("x" * 10_000_000)
    with pytest.raises(LimitError, match="the prompt has 10,000,024 characters"):
        runner.generate("x" * 10_000_000, chat=True)
    with pytest.raises(LimitError, match="prompt 0 has 1,000,000,000 token ids, which exceeds 1,048,576"):
        runner.generate([range(10**9)])


@pytest.mark.parametrize("prompts", [np.array(5), [np.array(5)], [5], 5, b"x", [b"x"], [2**70], [[2**70]], iter("x")])
def test_what_is_no_prompt_is_refused(runner, prompts):
    with pytest.raises(ArgumentError, match=r"prompt") as raised:
        runner.generate(prompts)
    assert len(str(raised.value)) < 500
