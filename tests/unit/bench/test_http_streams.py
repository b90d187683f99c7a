"""Streams over HTTP, cut at any place, against the events and bytes that they were made of."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.bench.fake_server import chunked, data, head, streamed, token_events
from trtllm_lite.bench.http_client.answer import read_answer
from trtllm_lite.bench.http_client.events import EventStream
from trtllm_lite.bench.http_client.response import Response
from trtllm_lite.errors import ServerError

BODY = {"prompt": [1, 2, 3], "max_tokens": 7}
EVENTS = token_events(BODY)
STREAM = b"".join(streamed(EVENTS).pieces)

# Contents that look like what surrounds them; JSON writes line ends as \n.
TEXTS = st.text(alphabet="data: \n\r0123456789abcdef\u2028é", max_size=12) | st.sampled_from(
    ["data: ", "\n\n", "[DONE]"]
)


def received(pieces):
    """The response whose bytes come in ``pieces``, at the instants 1, 2 and so on."""
    response = Response()
    for instant, piece in enumerate(pieces, 1):
        assert not response.done
        response.take(piece, float(instant))
    return response


def cut(content, places):
    """``content`` in pieces that begin at ``places``."""
    bounds = [0, *sorted({place for place in places if 0 < place < len(content)}), len(content)]
    return [content[begin:end] for begin, end in itertools.pairwise(bounds)]


@st.composite
def streams(draw):
    """Texts, the bytes of a response that streams an event for each, and the pieces in which they come."""
    texts = draw(st.lists(TEXTS, max_size=12))
    end = draw(st.sampled_from([b"\n", b"\r\n"]))
    between = st.sampled_from([b"", b": a comment" + end, b"event: message" + end, b": ping" + end + end, end])
    events = [draw(between) + data({"text": text}).replace(b"\n", end) for text in texts]
    body = b"".join([*events, data(b"[DONE]")])
    if draw(st.booleans()):
        frames = cut(body, draw(st.lists(st.integers(1, len(body)))))
        framed = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked") + b"".join(chunked(frames))
    else:
        framed = head("content-type: text/event-stream; charset=utf-8", f"content-length: {len(body)}") + body
    return texts, cut(framed, draw(st.lists(st.integers(1, len(framed)))))


@given(streams())
def test_every_event_counts_wherever_the_stream_is_cut(stream):
    texts, pieces = stream
    response = received(pieces)
    assert response.done
    events = response.events
    assert len(events.times_s) == len(texts) + 1
    said = [json.loads(event)["text"] for event in events.first if event != b"[DONE]"]
    assert said == texts[:2]
    *last, done = events.last
    assert done == b"[DONE]"
    assert [json.loads(event)["text"] for event in last] == texts[-len(last) :] if last else not texts


@given(streams())
def test_an_event_has_come_with_its_last_byte(stream):
    _, pieces = stream
    whole, response = b"", Response()
    counts = []
    for instant, piece in enumerate(pieces, 1):
        whole += piece
        response.take(piece, float(instant))
        counts.append(len(response.events.times_s) if response.events else 0)
    times = list(response.events.times_s)
    assert counts == [sum(time <= instant for time in times) for instant in range(1, len(pieces) + 1)]


@pytest.mark.parametrize("place", range(1, len(STREAM)))
def test_a_stream_cut_in_two_has_the_same_tokens(place):
    answer = read_answer(received([STREAM[:place], STREAM[place:]]), streamed=True)
    assert (len(answer.chunk_times_s), answer.num_tokens, answer.prompt_len) == (7, 7, 3)
    assert set(answer.chunk_times_s) <= {1.0, 2.0}


def test_a_stream_byte_by_byte_has_the_same_tokens():
    answer = read_answer(received([bytes([byte]) for byte in STREAM]), streamed=True)
    ends = [STREAM.index(b'"finish_reason": null') for _ in EVENTS[:1]]
    assert len(answer.chunk_times_s) == 7
    assert answer.chunk_times_s[0] > ends[0]
    assert len(set(answer.chunk_times_s)) == 7


@given(st.binary(max_size=300), st.lists(st.integers(1, 400)), st.integers(0, 2))
def test_a_body_is_what_was_sent(content, places, framing):
    lines = (["Transfer-Encoding: chunked"], [f"Content-Length: {len(content)}"], [])[framing]
    frames = [piece for piece in cut(content, [7, 20]) if piece]
    body = b"".join(chunked(frames)) if framing == 0 else content
    response = received(cut(head(*lines, status="500 No") + body, places))
    if framing == 2:
        assert not response.done
        response.close(0.0)
    assert response.done
    assert (response.status, bytes(response.body), response.events) == (500, content, None)
    assert response.reusable == (framing != 2)


def test_extensions_trailers_and_interim_responses_are_passed_over():
    content = head(status="103 Early Hints") + head("Transfer-Encoding: chunked")
    content += b"3;name=value\r\nabc\r\n00\r\nDigest: x\r\nMore: y\r\n\r\n"
    for place in range(1, len(content)):
        response = received([content[:place], content[place:]])
        assert response.done
        assert (response.status, bytes(response.body)) == (200, b"abc")


@pytest.mark.parametrize(
    ("first", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_the_server_says_whether_a_connection_goes_on(first, reusable):
    response = received([first])
    assert response.done
    assert response.reusable == reusable


@pytest.mark.parametrize(
    "content",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
        head("Content-Length: -1"),
        head("Content-Length: 3") + b"abcd",
        head("Transfer-Encoding: chunked") + b"-3\r\nabc\r\n",
        head("Transfer-Encoding: chunked") + b"zz\r\nabc\r\n",
        head("Transfer-Encoding: chunked") + b"3\r\nabcdefgh",
        head("Transfer-Encoding: chunked") + b"0\r\n\r\nmore",
        head("Transfer-Encoding: chunked") + b"1" * 2000,
    ],
)
def test_what_is_not_http_is_an_error(content):
    with pytest.raises(ServerError, match="which is not HTTP") as raised:
        received([content])
    assert raised.value.kind == "malformed response"


@pytest.mark.parametrize("size", [0, 10, len(STREAM) // 2, len(STREAM) - 1])
def test_a_response_that_is_cut_off_is_an_error(size):
    response = received([STREAM[:size]] if size else [])
    with pytest.raises(ServerError, match="within a response" if size else "before a response"):
        response.close(0.0)


def test_an_event_of_several_lines_is_one():
    events = EventStream()
    events.take(b'data: {"a":\ndata: 1}\n\ndata: [DONE]', 1.0)
    events.end(2.0)
    assert (list(events.times_s), events.last) == ([1.0, 2.0], [b'{"a":\n1}', b"[DONE]"])
