"""Thoughts and answers spelled by any tokens: masks, drafts, tokens rolled back, and stop words."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import regex
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from tests.models import EOS_ID, PAD_ID, tiny_tokenizer
from tests.rounds import rounds
from trtllm_lite import GuidedDecodingParams, _testing
from trtllm_lite.runtime.session.reasoning import Thoughts
from trtllm_lite.runtime.text.words import Words
from trtllm_lite.serve.parsers import Content, Reasoning, join_events
from trtllm_lite.serve.parsers.reasoning import ReasoningMarkers, ReasoningParser

from .test_forced_tokens import NUM_WITHOUT_TEXT, grammars_of
from .test_guided_decoding import goes_on
from .test_stop_words import tokens_that_print
from .texts import kept, push, text_stream

ENDS = {EOS_ID, PAD_ID}
# Some have a marker's end and an answer's beginning, or a marker's beginning after white space.
PIECES = (
    "<th",
    "nk>1",
    ">2",
    ">-",
    ">\n",
    "k>",
    " <t",
    "\n<think>",
    "</think>3-",
    "<think></think>4",
    "ink",
    "</",
    "!?1",
)
THINK = Thoughts(("<think>",), (("</think>",),))
KINDS = {
    "tags": THINK,
    "two of each": Thoughts(("<think>", "<to", "1<t"), (("</think>", "!?"),)),
    "parts": Thoughts(("<t",), (("<think",), (">", "2"))),  # the end marker begins with the start marker
    "from the start": Thoughts((), THINK.ends),
}
SPACE = b" \t\n\r"
PATTERNS = ("[0-9]-[0-9]{2}", "<[a-z]{2,5}>[0-9]+", "(?s:.*)", " ?[0-9]*", "<think>[0-9]")


@cache
def vocabulary(special: bool) -> tuple[tokenizers.Tokenizer, list[bytes]]:
    """The tiny tokenizer with PIECES and the tags (as special tokens or not), and the texts of its tokens."""
    tokenizer = tokenizers.Tokenizer.from_str(tiny_tokenizer().to_str())
    names = [AddedToken(piece, special=False, normalized=False) for piece in PIECES]
    names += [AddedToken(tag, special=special, normalized=False) for tag in ("<think>", "</think>")]
    tokenizer.add_tokens(names)
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    bytes_of = {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}
    added = tokenizer.get_added_tokens_decoder()
    texts = [
        added[token].content.encode() if token in added else bytes(bytes_of[c] for c in tokenizer.id_to_token(token))
        for token in range(tokenizer.get_vocab_size())
    ]
    return tokenizer, texts


@kept
def grammar_of(special: bool, kind: str, pattern: str):
    tokenizer, _ = vocabulary(special)
    thoughts = KINDS[kind]
    guided = GuidedDecodingParams(
        regex=pattern, reasoning_start_str=thoughts.starts or None, reasoning_end_str=thoughts.ends
    )
    return made(special).of(guided, np.array(tokenizer.encode("a dog<|user|>").ids, np.int32))


@kept
def made(special: bool):
    return grammars_of(vocabulary(special)[0])


def parts_of(text: bytes, thoughts: Thoughts) -> tuple[str, bytes]:
    """Whether a text "thinks", "may think" or is an "answer", and the part of the answer that it has."""
    lead = text.lstrip(SPACE) if thoughts.starts else text
    starts = [start.encode() for start in thoughts.starts]
    begun = next((start for start in starts if lead.startswith(start)), b"" if not starts else None)
    if begun is None:
        may = bool(lead) and any(start.startswith(lead) for start in starts)
        return ("may think" if may else "answer"), text
    overlaps = any(starts and end[:1] == thoughts.starts[0][:1] and len(thoughts.ends) > 1 for end in thoughts.ends[0])
    at = 0 if overlaps else len(begun)
    for texts in thoughts.ends:
        found = [place + len(end) for end in texts if (place := lead.find(end.encode(), at)) >= 0]
        if not found:
            return "thinks", b""
        at = min(found)
    return "answer behind", lead[at:]


def may_come(texts, special_ids, tokens, thoughts, pattern) -> bool:
    """Whether the text of ``tokens`` can be continued to a match, according to a regular expression engine."""
    place, answer = parts_of(b"".join(texts[token] for token in tokens), thoughts)
    if place == "thinks":
        return not set(tokens) & ENDS
    in_answer, left = [], len(answer)
    for token in reversed(tokens):
        if left <= 0:
            break
        in_answer.append(token)
        left -= len(texts[token])
    fits = not set(in_answer) & special_ids and goes_on(regex.compile(pattern.encode()), answer)
    return fits or (place == "may think" and may_begin(texts, tokens, thoughts))


def may_begin(texts, tokens, thoughts) -> bool:
    """Whether a marker may start here: where some token begins with the whole marker, only such a token starts it."""
    pieces = [texts[token] for token in tokens]
    before, lead = b"".join(pieces[:-1]).lstrip(SPACE), b"".join(pieces).lstrip(SPACE)
    starts = [start.encode() for start in thoughts.starts]
    spelled = [start for start in starts if not any(text.lstrip(SPACE).startswith(start) for text in texts)]
    return before != b"" or any(start.startswith(lead) for start in spelled)


def allowed_of(matcher, size):
    """The allowed tokens that have a text."""
    return [token for token in matcher.allowed(size + NUM_WITHOUT_TEXT) if token < size]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=rounds(20))
@given(data=st.data(), special=st.booleans(), pattern=st.sampled_from(PATTERNS))
def test_a_text_thinks_or_matches_the_grammar(kind, data, special, pattern):
    """Masks allow what a reference allows, also after drafts were rolled back; drafts end where masks forbid them."""
    tokenizer, texts = vocabulary(special)
    thoughts, grammar, size = KINDS[kind], grammar_of(special, kind, pattern), len(texts)
    special_ids = {token for token, name in tokenizer.get_added_tokens_decoder().items() if name.special}
    matcher, forcer, tokens = _testing.start_grammar(grammar), _testing.start_forcer(grammar), []
    interesting = [token for token, text in enumerate(texts) if len(text) == 1 and text in b"<>/think1234-!? \n"]
    interesting += [size - 1 - place for place in range(len(PIECES) + 2)]
    for _ in range(14):
        allowed = allowed_of(matcher, size)
        others = set(allowed) - ENDS
        asked = [*interesting, *range(0, size, 7)]
        expected = {t for t in asked if t not in ENDS and may_come(texts, special_ids, [*tokens, t], thoughts, pattern)}
        assert others & set(asked) == expected, (tokens, [texts[t] for t in tokens])
        likely = [token for token in interesting if token in others] or sorted(others)
        if not likely:
            break
        draft, masks = [], [allowed]
        for token in data.draw(st.lists(st.sampled_from(likely), min_size=1, max_size=3)):
            if token not in masks[-1]:
                break
            draft.append(token)
            matcher.accept([token])
            masks.append(allowed_of(matcher, size))
        is_cut = len(draft) < 3 and forcer.num_allowed([*draft, EOS_ID]) > len(draft)
        assert forcer.num_allowed(draft) == len(draft)
        assert not is_cut or EOS_ID in masks[-1]
        taken = data.draw(st.integers(0, len(draft)))
        matcher.roll_back(len(draft) - taken)
        assert allowed_of(matcher, size) == masks[taken]
        tokens += draft[:taken]
        forcer.accept(draft[:taken])


@st.composite
def cuts(draw, text):
    """The text cut into random pieces."""
    places = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=8))})
    return [text[begin:end] for begin, end in pairwise(places)]


MARKERS = ReasoningMarkers(("<think>", "Thus:"), ("</think>", "So:"))
TEXTS = st.tuples(
    st.sampled_from(["", " ", "\n<think>", "<think>", "Thus:\n", "<thin", "Thus", "x<think>"]),
    st.text("ab<\n", max_size=6),
    st.sampled_from(["", "</think>", "</thi", "So:\n\n", "So"]),
    st.text("ab<\n", max_size=8),
).map("".join)


@settings(deadline=None, max_examples=rounds(300))
@given(data=st.data(), text=TEXTS, is_inside=st.booleans(), include=st.booleans())
def test_stop_strings_are_those_of_the_answer(data, text, is_inside, include):
    """An answer ends at the same place however it is tokenized; of strings that end together, the longest counts."""
    stops = data.draw(st.lists(st.sampled_from(["a", "b\n", "ab", "<", "\n", "Th", "So:"]), min_size=1, max_size=3))
    pieces = data.draw(cuts(text))
    thoughts = MARKERS.thoughts if not is_inside else Thoughts((), MARKERS.thoughts.ends)
    stream = text_stream(
        tokens_that_print(pieces or [""]),
        [],
        Words(tuple(stops)),
        thoughts=thoughts.native,
        includes_stop=include,
    )
    got = "".join(push(stream, range(len(pieces))))
    if stream.match is None:
        got += stream.finish()
    before, answer = parted(text, is_inside)
    cut, match = ended(answer, stops, include)
    assert (got, stream.match) == (before + cut, match)
    if not is_inside:
        assert said(got, MARKERS)[0] == said(text, MARKERS)[0]  # the thoughts are whole


def parted(text: str, is_inside: bool) -> tuple[str, str]:
    """A text up to its answer, and the answer."""
    start = "" if is_inside else r"[ \t\n\r]*(?:<think>|Thus:)"
    found = regex.match(rf"(?s){start}(.*?)(</think>|So:|\Z)[\r\n]*", text)
    return ("", text) if found is None else (text[: found.end()], text[found.end() :])


def ended(answer: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    for end in range(len(answer) + 1):
        found = [stop for stop in stops if answer[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return answer[: end if include else end - len(longest)], longest
    return answer, None


def said(text: str, markers: ReasoningMarkers) -> tuple[str, str]:
    """The thoughts and the content that a parser reads."""
    parser = ReasoningParser(markers)
    events = join_events(parser.push(text) + parser.finish())
    return tuple("".join(e.text for e in events if isinstance(e, kind)) for kind in (Reasoning, Content))
