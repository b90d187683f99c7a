"""The server speaks HTTP with clients that pipeline, are old, send Expect, send garbage, or disconnect."""

import http.client
import re
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import httpx
import pytest

LONG = {"model": "smollm2", "prompt": "Water boils at", "max_tokens": 900, "ignore_eos": True}
HEADERS = b"Host: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"model": "smollm2", "prompt": "a", "max_tokens": 1}'


def test_a_client_that_goes_away_has_its_stream_cancelled(server):
    with httpx.stream("POST", f"{server.address}/v1/completions", json={**LONG, "n": 4, "stream": True}) as response:
        next(response.iter_lines())
    before = httpx.get(f"{server.address}/load").json()
    assert before["server_load"] in (0, 4)
    server.wait_until_idle()
    [made] = httpx.get(f"{server.address}/load").json()["models"].values()
    [known] = before["models"].values()
    assert made["num_generated_tokens"] - known["num_generated_tokens"] < 4 * LONG["max_tokens"] // 2


def test_a_client_that_goes_away_has_its_whole_answer_cancelled(server):
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"))
    connection.request(
        "POST",
        "/v1/completions",
        httpx.Request("POST", "http://a", json=LONG).content,
        {"content-type": "application/json"},
    )
    while httpx.get(f"{server.address}/load").json()["server_load"] == 0:
        assert not server.process.poll()
    connection.close()
    server.wait_until_idle()
    assert any(" 499 " in line for line in server.log)


def test_clients_that_go_away_at_once_leave_nothing_behind(server):
    [before] = httpx.get(f"{server.address}/load").json()["models"].values()
    body = httpx.Request("POST", "http://a", json={**LONG, "n": 2}).content
    for _ in range(20):
        connection = http.client.HTTPConnection(server.address.removeprefix("http://"))
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        connection.close()
    server.wait_until_idle()
    [after] = httpx.get(f"{server.address}/load").json()["models"].values()
    assert after["num_generated_tokens"] - before["num_generated_tokens"] < LONG["max_tokens"]


def test_pipelined_requests_are_answered_in_order(server):
    posted = b"POST /v1/completions HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (HEADERS, len(BODY), BODY)
    got = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answers = server.exchange(posted + got + last).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200", b"200", b"404"]
    assert b"text_completion" in answers[0]
    assert b"version" in answers[1]


def test_an_old_client_is_answered_and_left(server):
    message = b"POST /v1/completions HTTP/1.0\r\n%bContent-Length: %d\r\n\r\n%b"
    received = server.exchange(message % (HEADERS, len(BODY), BODY))
    assert received.startswith(b"HTTP/1.1 200 ")
    streamed = BODY.replace(b"}", b', "stream": true}')
    received = server.exchange(message % (HEADERS, len(streamed), streamed))
    assert b"\r\n\r\ndata: {" in received
    assert received.endswith(b"data: [DONE]\n\n")


def test_a_client_that_asks_first_is_told_to_go_on(server):
    head = b"POST /v1/completions HTTP/1.1\r\n%bConnection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    received = server.exchange(head % (HEADERS, len(BODY)) + BODY)
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert server.exchange(head % (HEADERS, 1 << 30)).startswith(b"HTTP/1.1 413 ")


def test_one_connection_serves_many_requests(server):
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"))
    sockets = set()
    for path in ("/health", "/version", "/nothing", "/v1/models", "/health"):
        connection.request("GET", path)
        sockets.add(connection.sock)
        connection.getresponse().read()
    assert len(sockets) == 1
    assert None not in sockets
    connection.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),  # a TLS client
        (b"GET / HTTP/1.1\r\nBad Header: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: \x1b[2J\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * (1 << 17) + b"\r\n\r\n", 431),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413),
    ],
)
def test_what_is_no_request_is_refused(server, sent, status):
    assert server.exchange(sent).startswith(b"HTTP/1.1 %d " % status)


def test_a_body_that_is_too_large_is_measured(server):
    response = httpx.post(f"{server.address}/v1/completions", content=b"a" * 20_000_000)
    assert response.status_code == 413
    assert re.search("20000000.*16777216", response.json()["error"]["message"])
    chunks = (b"a" * 1_000_000 for _ in range(20))
    response = httpx.post(f"{server.address}/v1/completions", content=chunks)
    assert response.status_code == 413
    assert "16777216" in response.json()["error"]["message"]


def test_requests_keep_their_names_and_are_logged(server):
    body = {"model": "smollm2", "prompt": "a b", "max_tokens": 3, "ignore_eos": True}

    def ask(name: str | bytes) -> str:
        answer = httpx.post(f"{server.address}/v1/completions", json=body, headers={"X-Request-Id": name})
        return answer.headers["X-Request-Id"]

    assert ask("my-request.1") == "my-request.1"
    for hostile in ("two words", "a" * 129, "", b"\xff"):
        assert re.fullmatch("[0-9a-f]{32}", ask(hostile))
    line = next(line for line in server.log if "my-request.1" in line)
    assert re.fullmatch(
        r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ 127\.0\.0\.1 "POST /v1/completions" 200 \d+\.\d{3}s model=smollm2 '
        r"prompt_tokens=\d completion_tokens=3 request_id=my-request\.1\n",
        line,
    )


def test_other_machines_need_a_key():
    command = [sys.executable, "-m", "trtllm_lite", "serve", "nowhere", "--host", "0.0.0.0"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "0.0.0.0" in ended.stderr
    assert "--api_key_file" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_in_use_is_one_error(server):
    """No object of the engine may be left when the interpreter exits: nanobind would report it."""
    address, port = server.address.removeprefix("http://").split(":")
    ended = subprocess.run([*server.process.args[:-1], port], capture_output=True, text=True)
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert line.startswith(f"Error: cannot listen at {address}:{port} (")
    assert line.endswith("): choose another address")


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_client_that_sends_nothing_more_gets_its_answer(server, version):
    address = urlsplit(server.address)
    sent = b"POST /v1/completions HTTP/%b\r\n%bContent-Length: %d\r\n\r\n%b" % (version, HEADERS, len(BODY), BODY)
    received = b""
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(1 << 16):
            received += part
    assert b"HTTP/1.1 200 OK\r\n" in received
    assert received.rstrip().endswith(b"}")


def test_a_server_without_a_key_is_not_used_by_other_pages(server):
    foreign = {"host": "attacker.example"}, {"origin": "https://attacker.example"}
    for headers in foreign:
        answer = httpx.post(f"{server.address}/v1/completions", content=BODY, headers=headers)
        assert answer.status_code == 403
    preflight = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
    answer = httpx.options(f"{server.address}/v1/chat/completions", headers=preflight)
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
