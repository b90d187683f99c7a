"""Grammars of outputs that may begin with reasoning."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken

from tests.models import EOS, EOS_ID, PAD_ID, tiny_tokenizer
from trtllm_lite import GuidedDecodingParams, _testing
from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.session.reasoning import Thoughts
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.serve.parsers.guides import MarkedGrammar

from .test_forced_tokens import grammars_of

ENDS = {EOS_ID, PAD_ID}
NUM_SHORT = 4 + 256  # the tiny tokenizer's special tokens and bytes are its first tokens
GUIDED = GuidedDecodingParams(regex="[0-9]{2}-fox", reasoning_end_str="</think>")


def thinking(special: bool | None) -> tokenizers.Tokenizer:
    """The tiny tokenizer with tokens (special or not) for Qwen's and DeepSeek's tags, or without them if None."""
    tokenizer = tokenizers.Tokenizer.from_str(tiny_tokenizer().to_str())
    if special is not None:
        tokenizer.add_tokens([AddedToken(tag, special=special) for tag in ("<think>", "</think>")])
    return tokenizer


def grammar_behind(tokenizer, prompt: str, guided: GuidedDecodingParams = GUIDED):
    return grammars_of(tokenizer).of(guided, np.array(tokenizer.encode(prompt).ids, np.int32))


def free(matcher, vocab_size: int) -> bool:
    """Whether all one-byte and special tokens except the end tokens are allowed."""
    allowed = set(matcher.allowed(vocab_size))
    return allowed >= set(range(NUM_SHORT)) - ENDS and not allowed & ENDS


@pytest.mark.parametrize("special", [True, False, None])
@pytest.mark.parametrize("prompt", ["a dog<|user|>", "a dog<|user|><think>\n", f"think.</think> 1{EOS}dog<think>\n"])
def test_tokens_are_free_up_to_the_marker(special, prompt):
    tokenizer = thinking(special)
    size = tokenizer.get_vocab_size()
    matcher = _testing.start_grammar(grammar_behind(tokenizer, prompt))
    for token in tokenizer.encode("1 < 2 </thin the lazy</think>").ids:
        assert free(matcher, size)
        matcher.accept([token])
    assert {tokenizer.decode([token])[:1] for token in matcher.allowed(size)} == set("0123456789")
    matcher.accept(tokenizer.encode("12-fox").ids)
    assert set(matcher.allowed(size)) == ENDS


@pytest.mark.parametrize("special", [True, False, None])
@pytest.mark.parametrize("prompt", ["dog<|user|><think>\n\n</think>\n\n", f"1{EOS}<|user|></think>", "</think>So:\n"])
def test_a_prompt_may_have_closed_the_block(special, prompt):
    tokenizer = thinking(special)
    matcher = _testing.start_grammar(grammar_behind(tokenizer, prompt))
    assert {tokenizer.decode([token])[:1] for token in matcher.allowed(tokenizer.get_vocab_size())} == set("0123456789")


@pytest.mark.parametrize(
    ("marker", "pieces"),
    [
        ("</think>", ["<", "/", "t", "h", "i", "n", "k", ">"]),
        ("aab", ["a", "a", "a", "b"]),  # a repeat of the marker's first letter stands before it
        ("abab!", ["ab", "ab", "ab", "!"]),
        ("t", ["d", "t"]),
        ("naïve", ["na", "ï", "ve"]),
    ],
)
def test_the_marker_is_text_however_it_is_spelled(marker, pieces):
    tokenizer = tiny_tokenizer()
    guided = GuidedDecodingParams(regex="[0-9]", reasoning_end_str=marker)
    tokens = [token for piece in pieces for token in tokenizer.encode(piece).ids]
    matcher = _testing.start_grammar(grammar_behind(tokenizer, "1", guided))
    for token in tokens:
        assert free(matcher, tokenizer.get_vocab_size())
        matcher.accept([token])
    assert not free(matcher, tokenizer.get_vocab_size())


HARMONY = GuidedDecodingParams(regex="[0-9]", reasoning_end_str=["<|channel|>final", "<|message|>"])


def harmony() -> tokenizers.Tokenizer:
    """The tiny tokenizer with gpt-oss's special tokens."""
    tokenizer = tokenizers.Tokenizer.from_str(tiny_tokenizer().to_str())
    names = ("start", "channel", "message", "end", "constrain")
    tokenizer.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in names])
    return tokenizer


@pytest.mark.parametrize("header", ["<|channel|>final", "<|channel|>final <|constrain|>json"])
@pytest.mark.parametrize("before", ["", "<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|end|>"])
def test_texts_that_end_reasoning_come_one_behind_the_other(header, before):
    """Each text is searched for after the previous one; an answer that has ended in the prompt does not count."""
    tokenizer = harmony()
    size = tokenizer.get_vocab_size()
    prompt = f"{before}<|start|>assistant"
    matcher = _testing.start_grammar(grammar_behind(tokenizer, prompt, HARMONY))
    thought = "<|channel|>analysis<|message|>a final <|channel|> <|channel|>fin<|end|><|start|>assistant"
    for token in tokenizer.encode(f"{thought}{header}<|message|>").ids:
        assert free(matcher, size)
        matcher.accept([token])
    assert {tokenizer.decode([token]) for token in matcher.allowed(size)} == set("0123456789")


@pytest.mark.parametrize("thought", ["", "<|channel|>analysis<|message|>1 fox<|end|><|start|>assistant"])
def test_messages_may_have_thoughts_before_the_answer(thought):
    """gpt-oss writes messages in this harmony format; a text without a header follows the grammar from the start."""
    tokenizer = harmony()
    size, digits = tokenizer.get_vocab_size(), set("0123456789")
    guided = replace(HARMONY, reasoning_start_str="<|channel|>")
    matcher = _testing.start_grammar(grammar_behind(tokenizer, "<|end|><|start|>assistant", guided))
    channel = tokenizer.token_to_id("<|channel|>")
    allowed = set(matcher.allowed(size))
    assert {tokenizer.decode([token]) for token in allowed - {channel}} == digits
    assert channel in allowed
    matcher.accept(tokenizer.encode(f"{thought}<|channel|>final <|constrain|>json").ids)
    assert free(matcher, size)
    matcher.accept(tokenizer.encode("<|message|>").ids)
    assert {tokenizer.decode([token]) for token in matcher.allowed(size)} == digits


def test_a_form_that_has_the_thoughts_is_left_as_it_is():
    tokenizer = harmony()
    guided = MarkedGrammar(grammar='start: "1"', has_thoughts=True, reasoning_end_str="<|channel|>")
    allowed = _testing.start_grammar(grammar_behind(tokenizer, "dog", guided)).allowed(tokenizer.get_vocab_size())
    assert [tokenizer.decode([token]) for token in allowed] == ["1"]


@pytest.mark.parametrize("special", [True, False, None])
def test_a_token_or_the_prompt_speaks_for_thoughts(special):
    tokenizer = Tokenizer(thinking(special), {})
    thoughts = Thoughts(("<think>", "Thus:"), (("</think>",),))
    assert thoughts.are_likely("a dog", tokenizer) == (special is not None)
    assert thoughts.are_likely("Write Thus: before you think.", tokenizer)


def test_a_prompt_may_have_begun_the_answer():
    tokenizer = harmony()
    grammar = grammar_behind(tokenizer, "<|end|><|start|>assistant<|channel|>final<|message|>", HARMONY)
    assert not free(_testing.start_grammar(grammar), tokenizer.get_vocab_size())
    grammar = grammar_behind(tokenizer, "<|message|><|channel|>final", HARMONY)
    assert free(_testing.start_grammar(grammar), tokenizer.get_vocab_size())


@pytest.mark.parametrize("parts", [["aab", "aab"], ["ab", "b", "abab"], ["a"], ["aaa", "aa"]])
def test_parts_of_a_marker_are_found_as_an_expression_finds_them(parts):
    """The texts are random and use few letters, so that prefixes of the markers overlap."""
    tokenizer, draw = tiny_tokenizer(), random.Random(0)
    guided = GuidedDecodingParams(regex="[0-9]", reasoning_end_str=parts)
    grammar, size = grammar_behind(tokenizer, "1", guided), tokenizer.get_vocab_size()
    expression = re.compile(".*".join(parts))
    for _ in range(60):
        text, matcher = "", _testing.start_grammar(grammar)
        while free(matcher, size):
            assert expression.search(text) is None
            letter = draw.choice("ab")
            text += letter
            matcher.accept(tokenizer.encode(letter).ids)
        assert expression.search(text) is not None


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [
        ("a dog<|user|>", {"<", "1", "9"}),  # the text may begin with thoughts or without
        ("1<think>2<|user|>", {"<", "1", "9"}),  # the marker is in an earlier turn
        ("<|user|><think>\n", None),
        ("<|user|><think>\nthe fox", None),
        ("<|user|><think>\n\n</think>\n\n", {"1", "9"}),
        ("<|user|></think>", {"1", "9"}),
        ("<think></think><|user|><think>\n\n", None),
    ],
)
def test_the_prompts_last_turn_says_where_the_text_begins(prompt, begins):
    tokenizer = thinking(special=None)
    tokenizer.add_tokens([AddedToken("\n\n", special=False)])  # a special token would end a turn
    guided = replace(GUIDED, reasoning_start_str="<think>", reasoning_end_str=[["</think>", "</done>"]])
    matcher, size = _testing.start_grammar(grammar_behind(tokenizer, prompt, guided)), tokenizer.get_vocab_size()
    if begins is None:
        assert free(matcher, size)
    else:
        assert {tokenizer.decode([token]) for token in matcher.allowed(size)} & {
            "<",
            "</",
            "1",
            "9",
            "t",
            " ",
        } == begins


@pytest.mark.parametrize("special", [True, False])
def test_tokens_are_taken_back_over_the_marker(special):
    tokenizer = thinking(special)
    size = tokenizer.get_vocab_size()
    end = tokenizer.token_to_id("</think>")
    grammar = grammar_behind(tokenizer, "dog")
    matcher, draw = _testing.start_grammar(grammar), random.Random(0)
    masks, tokens = [], []
    for _ in range(400):
        allowed = matcher.allowed(size)
        if len(masks) == len(tokens):
            masks.append(allowed)
        assert allowed == masks[-1]
        if tokens and (draw.random() < 0.35 or tokens[-1] in ENDS):
            count = draw.randint(1, len(tokens))
            matcher.roll_back(count)
            del tokens[-count:], masks[-count:]
        else:
            tokens.append(end if end in allowed and draw.random() < 0.3 else draw.choice(allowed))
            matcher.accept(tokens[-1:])
        rebuilt = _testing.start_grammar(grammar)  # as after a preemption
        rebuilt.accept(tokens)
        assert rebuilt.allowed(size) == matcher.allowed(size)


def test_forced_tokens_begin_behind_the_marker():
    tokenizer = thinking(special=False)
    end, fox = tokenizer.token_to_id("</think>"), tokenizer.encode("-fox").ids
    grammar = grammar_behind(tokenizer, "dog")
    forcer, other = _testing.start_forcer(grammar), _testing.start_forcer(grammar)
    other.accept([end])
    numbers = tokenizer.encode("12").ids
    assert forcer.forced_tokens(8) == []
    assert forcer.num_allowed([*fox, end, *numbers, *numbers]) == len(fox) + 1 + len(numbers)
    assert forcer.num_allowed([*fox, EOS_ID, end]) == len(fox)
    forcer.accept([*fox, end])
    assert forcer.forced_tokens(8) == []
    forcer.accept(numbers)
    assert forcer.forced_tokens(8) == fox


@pytest.mark.parametrize(
    ("marker", "error", "message"),
    [
        ("", ArgumentError, "reasoning_end_str of guided_decoding is '': expected a string that is not empty"),
        (3, ArgumentError, "reasoning_end_str of guided_decoding is 3"),
        ([], ArgumentError, r"reasoning_end_str of guided_decoding is \[\]"),
        (["a", ""], ArgumentError, "reasoning_end_str of guided_decoding is ''"),
        (["a" * 200, "b" * 57], LimitError, "reasoning_end_str of guided_decoding has 257 characters"),
        ("a" * 257, LimitError, "reasoning_end_str of guided_decoding has 257 characters, which exceeds 256"),
    ],
)
def test_markers_out_of_their_domain_are_refused(marker, error, message):
    with pytest.raises(error, match=message):
        GuidedDecodingParams(regex="a", reasoning_end_str=marker)
    with pytest.raises(error, match=message.replace("_end_", "_start_")):
        GuidedDecodingParams(regex="a", reasoning_start_str=marker, reasoning_end_str="</think>")


def test_what_begins_reasoning_needs_what_ends_it():
    with pytest.raises(ArgumentError, match="reasoning_start_str alone"):
        GuidedDecodingParams(regex="a", reasoning_start_str="<think>")
    with pytest.raises(ArgumentError, match=r"has none: expected exactly one of json, .*structural_tag"):
        GuidedDecodingParams()
    assert GuidedDecodingParams(reasoning_end_str="</think>").source is None
