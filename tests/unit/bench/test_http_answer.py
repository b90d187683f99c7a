"""What counts as a token in the answers of different servers, and what makes a request fail."""

import json

import pytest

from tests.unit.bench.fake_server import data, head, streamed, token_events, whole
from trtllm_lite.bench.http_client.answer import read_answer
from trtllm_lite.bench.http_client.response import Response
from trtllm_lite.errors import ServerError

USAGE = {"prompt_tokens": 5, "completion_tokens": 3}
DONE = data(b"[DONE]")


def text(content, finish=None):
    return data({"choices": [{"text": content, "finish_reason": finish}]})


def delta(finish=None, **fields):
    return data({"choices": [{"delta": fields, "finish_reason": finish}], "usage": None})


def usage(**changes):
    return data({"choices": [], "usage": {**USAGE, **changes}})


def answer_of(events, stream=True):
    """The answer of a stream whose events come at 0 s, 1 s, 2 s and so on."""
    first, *pieces, end = streamed(events).pieces
    response = Response()
    response.take(first, -1.0)
    for instant, piece in enumerate(pieces):
        response.take(piece, float(instant))
    response.take(end, float(len(pieces)))
    return read_answer(response, stream)


def response_of(reply):
    response = Response()
    response.take(b"".join(reply.pieces), 4.0)
    return response


@pytest.mark.parametrize(
    ("events", "times"),
    [
        ([text("a"), text("b"), text("c", "length"), usage(), DONE], [0, 1, 2]),
        # The end is an event of its own.
        ([text("a"), text("b"), text("c"), text("", "length"), usage(), DONE], [0, 1, 2]),
        # The last token has no text, as a piece of a character has none.
        ([text("a"), text(""), text("", "length"), usage(), DONE], [0, 1, 2]),
        # The usage comes with the end.
        ([text("a"), text("b"), text("c"), data({"choices": [], "usage": USAGE}), DONE], [0, 1, 2]),
        # Chunks of several tokens.
        ([text("ab"), text("c", "length"), usage(), DONE], [0, 1]),
        ([text("abc", "length"), usage(), DONE], [0]),
        # Chats begin with a role, which is no token.
        ([delta(role="assistant", content=""), delta(content="a"), delta(content="b"), usage(), DONE], [1, 2]),
        ([delta(role="assistant", content="a"), delta(content="b"), usage(), DONE], [0, 1]),
        ([delta(role="assistant", content=None), delta(reasoning_content="a"), usage(), DONE], [1]),
        ([delta(role="assistant"), delta(content="abc"), delta("length"), usage(), DONE], [1]),
        ([data({"choices": []}), delta(content="abc", finish="length"), usage(), DONE], [1]),
    ],
)
def test_chunks_with_tokens_count(events, times):
    answer = answer_of(events)
    assert list(answer.chunk_times_s) == times
    assert (answer.num_tokens, answer.prompt_len, answer.num_cached_tokens) == (3, 5, None)


def test_long_streams_count_the_same():
    body = {"messages": [], "max_tokens": 1000}
    assert list(answer_of(token_events(body)).chunk_times_s) == list(range(1, 1001))
    assert answer_of(token_events(body, tokens_per_event=3)).num_tokens == 1000


def test_cached_tokens_are_those_that_the_server_tells():
    events = [text("a"), usage(prompt_tokens_details={"cached_tokens": 4}), DONE]
    assert answer_of(events).num_cached_tokens == 4
    assert answer_of([text("a"), usage(prompt_tokens_details=None), DONE]).num_cached_tokens is None


def test_a_response_that_is_no_stream_is_one_chunk():
    answer = read_answer(response_of(whole({"choices": [{"text": "abc"}], "usage": USAGE})), streamed=False)
    assert (list(answer.chunk_times_s), answer.num_tokens) == ([4.0], 3)


def test_embeddings_count_as_tokens():
    content = {"data": [{"embedding": "AAAA"}, {"embedding": "BBBB"}], "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    answer = read_answer(response_of(whole(content)), streamed=False)
    assert (list(answer.chunk_times_s), answer.num_tokens, answer.prompt_len) == ([4.0], 2, 7)


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([text("a"), usage()], "no [DONE]"),
        ([], "no [DONE]"),
        ([DONE], "no usage"),
        ([text("a"), DONE], "no usage"),
        ([text("a"), usage(completion_tokens="3"), DONE], "no usage"),
        ([text("a"), usage(completion_tokens=0), DONE], "no tokens"),
        ([usage(), DONE], "no tokens"),
        ([text("a"), data({"error": {"message": "out of memory"}}), DONE], "error in a stream"),
        ([data({"error": "bad"}), DONE], "error in a stream"),
        ([data(b"hello"), DONE], "no JSON"),
        ([data([1]), DONE], "no JSON"),
    ],
)
def test_streams_that_fail_have_a_kind(events, kind):
    with pytest.raises(ServerError) as raised:
        answer_of(events)
    assert raised.value.kind == kind


def test_refusals_say_what_the_server_says():
    reply = whole({"error": "slow down\x1b[2J"}, "Retry-After: 7", status="429 Too Many Requests")
    with pytest.raises(ServerError) as raised:
        read_answer(response_of(reply), streamed=True)
    assert raised.value.kind == "HTTP 429"
    assert str(raised.value).startswith("the server answered HTTP 429, Retry-After: 7: {")
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(("content", "kind"), [({"choices": []}, "no usage"), ([], "no JSON")])
def test_answers_without_a_stream_fail_alike(content, kind):
    with pytest.raises(ServerError) as raised:
        read_answer(response_of(whole(content)), streamed=False)
    assert raised.value.kind == kind


def test_a_stream_that_was_asked_for_has_to_be_one():
    with pytest.raises(ServerError, match="where a stream was asked for") as raised:
        read_answer(response_of(whole({"usage": USAGE})), streamed=True)
    assert raised.value.kind == "no stream"


def test_long_bodies_are_quoted_in_part():
    body = json.dumps(["x" * 100_000]).encode()
    response = Response()
    response.take(head(f"Content-Length: {len(body)}", status="500 Broken") + body, 0.0)
    with pytest.raises(ServerError) as raised:
        read_answer(response, streamed=True)
    assert len(str(raised.value)) < 500
