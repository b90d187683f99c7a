"""``trtllm-lite bench serve``: options, exit codes, reports and comparisons, on a server that makes no tokens."""

import json

import pytest
from click.testing import CliRunner

from tests.models import tiny_tokenizer
from tests.unit.bench.fake_server import all_tokens, fake_server, in_turn, whole
from trtllm_lite.cli import cli
from trtllm_lite.cli.bench.options import REGRESSED
from trtllm_lite.cli.bench.serve import _warn_if_saturated


def run(server, *arguments):
    given = {"--arrival": "all", "--num_requests": 4, "--output_len": 3}
    defaults = [word for name, value in given.items() if name not in arguments for word in (name, value)]
    texts = ["bench", "serve", "--base_url", server.base_url, *map(str, [*defaults, *arguments])]
    return CliRunner().invoke(cli, texts)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def refuse(_):
    return whole({"error": "busy"}, status="503 Service Unavailable")


def test_the_report_says_what_was_measured(tmp_path):
    path = tmp_path / "report.json"
    with fake_server() as server:
        result = run(server, "--vocab-size", 40, "--concurrency", 2, "--num_client_processes", 2, "--json", path)
    assert result.exit_code == 0, result.output
    assert "4 requests, all" in result.output
    (report,) = json.loads(path.read_text())
    assert report["benchmark"] == "serve"
    assert report["engine"] == {"model": "fake"}
    assert report["server"]["base_url"] == server.base_url
    assert (report["shape"]["num_requests"], report["shape"]["concurrency"]) == (4, 2)
    assert report["runtime"] == {
        **{"endpoint": "/v1/completions", "stream": True, "ignore_eos": True, "prompt_type": "ids", "vocab_size": 40},
        **{"num_client_processes": 2, "num_warmups": 1},
    }
    assert report["errors"] == []
    assert report["figures"]["output_tokens"] == 12
    assert len(server.asked) == 4 + 1
    assert max(token for request in server.asked for token in request.body["prompt"]) < 40


def test_servers_are_compared_if_they_are_asked_the_same(tmp_path):
    path = tmp_path / "baseline.json"
    with fake_server() as server:
        assert run(server, "--vocab_size", 40, "--json", path).exit_code == 0
    with fake_server() as other:
        result = run(other, "--vocab_size", 40, "--compare", path)
        assert result.exit_code in (0, REGRESSED)
        assert "figures regressed beyond the tolerance" in result.output
        result = run(other, "--vocab_size", 41, "--compare", path)
        assert result.exit_code == 1
        assert "runtime.vocab_size: 40 in the baseline, 41 now" in result.output


def test_chats_are_asked_in_text(tokenizer):
    with fake_server() as server:
        result = run(server, "--endpoint", "/v1/chat/completions", "--tokenizer", tokenizer, "--no-stream")
    assert result.exit_code == 0, result.output
    assert {request.path for request in server.asked} == {"/v1/chat/completions"}
    assert all(request.body["messages"][0]["content"] for request in server.asked)


def test_embeddings_are_measured(tmp_path):
    """Lengths are those of texts alone, so that they may be as long as the server takes."""
    path = tmp_path / "report.json"
    given = ["--endpoint", "/v1/embeddings", "--vocab_size", 40, "--input_len", 16, "--max_seq_len", 16]

    def embed(request):
        count = len(request.body["input"])
        return whole({"data": [{"embedding": "AAAA"}], "usage": {"prompt_tokens": count, "total_tokens": count}})

    with fake_server(embed) as server:
        result = run(server, *given, "--priorities", 3, "--json", path)
    assert result.exit_code == 0, result.output
    assert {request.path for request in server.asked} == {"/v1/embeddings"}
    fields = {"model": "fake", "encoding_format": "base64", "priority": 3}
    assert [{**request.body, "input": len(request.body["input"])} for request in server.asked] == [
        {**fields, "input": 16}
    ] * 5
    (report,) = json.loads(path.read_text())
    assert (report["figures"]["prompt_tokens"], report["figures"]["output_tokens"]) == (64, 4)
    assert (report["runtime"]["stream"], report["runtime"]["ignore_eos"]) == (False, False)


def test_completions_may_be_asked_in_text(tokenizer):
    with fake_server() as server:
        assert run(server, "--prompt_type", "text", "--tokenizer", tokenizer, "--no-ignore-eos").exit_code == 0
        assert run(server, "--tokenizer", tokenizer, "--num_warmups", 0).exit_code == 0
    assert [type(request.body["prompt"]) for request in server.asked] == [str] * 5 + [list] * 4
    assert ["ignore_eos" in request.body for request in server.asked] == [False] * 5 + [True] * 4


def test_failures_end_with_an_error_unless_they_are_allowed(tmp_path):
    path = tmp_path / "report.json"
    few = ("--vocab_size", 40, "--num_warmups", 0, "--concurrency", 1, "--json", path)
    with fake_server(in_turn(refuse, all_tokens)) as server:
        result = run(server, *few)
    assert result.exit_code == 1
    assert "1 of 4 requests failed; --allow_errors accepts" in result.stderr
    assert result.stdout.startswith("1 of 4 requests failed")
    assert "the server answered HTTP 503" in result.stdout
    assert json.loads(path.read_text())[0]["figures"]["failed_requests"] == 1
    with fake_server(in_turn(refuse, all_tokens)) as server:
        assert run(server, *few, "--allow_errors").exit_code == 0
    with fake_server(refuse) as server:
        result = run(server, *few, "--allow_errors")
    assert result.exit_code == 1
    assert "4 of 4 requests failed\n" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give the model's vocab_size, or its tokenizer"),
        (("--endpoint", "/v1/chat/completions"), "prompts as text need a tokenizer"),
        (("--endpoint", "/v1/chat/completions", "--prompt_type", "ids"), "takes text: leave prompt_type out"),
        (("--vocab_size", 40, "--model", "other"), "model is 'other'"),
        (("--vocab_size", 40, "--max_seq_len", 50), "take 131 tokens (128 + 3), above max_seq_len 50"),
        (("--vocab_size", 40, "--num_client_processes", 9), "num_client_processes is 9, above num_requests 4"),
        (("--vocab_size", 40, "--api_key_file", "absent"), "cannot read api_key_file absent"),
        (("--vocab_size", 40, "--goodput", "itl:3"), "expected NAME:MILLISECONDS"),
        (("--arrival", "poisson", "--request_rate", "inf"), "arrival all, without a rate, sends all at once"),
    ],
)
def test_options_that_make_no_sense_are_errors_before_anything_is_measured(arguments, message):
    with fake_server() as server:
        result = run(server, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert server.asked == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("vocab_size", 0), ("vocab_size", (1 << 31) + 1), ("max_seq_len", 0), ("num_client_processes", 0)),
        *(("num_warmups", -1), ("price_per_hour", -1), ("price_per_hour", "nan")),
    ],
)
def test_numbers_out_of_range_are_wrong_options(option, value):
    with fake_server() as server:
        result = run(server, f"--{option}", value)
    assert result.exit_code == 2
    assert f"Invalid value for '--{option}'" in result.stderr
    assert server.asked == []


def test_the_key_is_read_from_a_file(tmp_path):
    path = tmp_path / "key"
    path.write_text("secret\n")
    with fake_server() as server:
        assert run(server, "--vocab_size", 40, "--api_key_file", path).exit_code == 0
        path.write_text("two\nlines\n")
        assert "holds no key" in run(server, "--vocab_size", 40, "--api_key_file", path).stderr
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer secret"}


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--max-concurrency", 4), "use --concurrency"),
        (("--num-prompts", 9), "use --num_requests"),
        (("--random-input-len", 9), "use --input_len"),
        (("--dataset-name", "sharegpt"), "--input_len sharegpt"),
        (("--host", "a"), "use --base_url http://HOST:PORT"),
    ],
)
def test_the_options_of_vllm_are_explained(arguments, remedy):
    with fake_server() as server:
        result = run(server, *arguments)
    assert result.exit_code == 2
    assert remedy in result.stderr


def test_options_of_vllm_that_change_nothing_are_accepted():
    with fake_server() as server:
        result = run(server, "--vocab_size", 40, "--percentile-metrics", "ttft,tpot", "--dataset-name", "random")
    assert result.exit_code == 0, result.output
    assert "Note: --percentile_metrics ttft,tpot changes nothing: every latency is reported" in result.stderr


def test_a_client_that_may_be_the_limit_is_told(capsys):
    _warn_if_saturated([0.2, 0.9])
    assert capsys.readouterr().err == ""
    _warn_if_saturated([0.2, 0.95, 1.0])
    assert "2 of 3 client processes took 95%, 100% of a core" in capsys.readouterr().err
