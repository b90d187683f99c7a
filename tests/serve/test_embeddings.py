"""/v1/embeddings of an encoder next to a decoder, by OpenAI's own client and by bodies that it would not send."""

import asyncio
import base64
from collections import Counter
from collections.abc import Iterator

import httpx
import numpy as np
import openai
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tests.encoders import expected_rows, write_pooling
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.serve.engines import make_tiny_engine
from tests.serve.server import Server, serving
from tests.tolerances import assert_close
from trtllm_lite import LLM

TEXTS = ["the quick brown fox", "jumps", "over the lazy dog " * 6]
SIZE = 60  # elements of an embedding by a tiny model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("encoder") / "model"
    save_tiny_model("bert", directory)
    write_pooling(directory)
    return directory


@pytest.fixture(scope="module")
def server(model_dir, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of an encoder and a decoder; six texts or 160 tokens fit into a step of the former."""
    directory = tmp_path_factory.mktemp("engines")
    decoder = make_tiny_engine(directory / "decoder", max_seq_len=128)
    with LLM(model_dir, max_batch_size=6, max_input_len=100, max_seq_len=100, max_num_tokens=160) as llm:
        llm.save(directory / "engine")
    options = ("--max_queue_size", 40)
    with serving(f"encoder={directory / 'engine'}", f"decoder={decoder}", *options) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def ids(model_dir) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    return [tokenizer(text).input_ids for text in TEXTS]


@pytest.fixture(scope="module")
def expected(model_dir, ids) -> np.ndarray:
    return expected_rows(AutoModel.from_pretrained(model_dir, dtype=torch.float32).eval(), ids, normalize=True)


def _rows(answer) -> np.ndarray:
    return np.array([entry.embedding for entry in answer.data], np.float32)


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_texts_are_embedded_as_transformers_does(client, ids, expected, form):
    asked = {} if form is None else {"encoding_format": form}
    answer = client.embeddings.create(model="encoder", input=TEXTS, **asked)
    if form == "base64":
        raw = httpx.post(f"{client.base_url}embeddings", json={"model": "encoder", "input": TEXTS, **asked}).json()
        assert all(isinstance(entry["embedding"], str) for entry in raw["data"])
        rows = np.array([np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in raw["data"]])
    else:
        rows = _rows(answer)
    assert_close(rows, expected, what="embeddings")
    assert (answer.object, answer.model) == ("list", "encoder")
    assert [(entry.index, entry.object) for entry in answer.data] == [(n, "embedding") for n in range(len(TEXTS))]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))


def test_all_forms_of_input(client, ids, expected):
    for given in (TEXTS[0], ids[0]):
        assert_close(_rows(client.embeddings.create(model="encoder", input=given)), expected[:1], what="embeddings")
    assert_close(_rows(client.embeddings.create(model="encoder", input=ids)), expected, what="embeddings")
    same = client.embeddings.create(model="encoder", input=TEXTS, dimensions=SIZE, user="someone")
    assert_close(_rows(same), expected, what="embeddings")


def test_requests_side_by_side_are_answered_apart(server, ids, expected):
    """Together, the requests have more texts than fit into a step."""

    async def ask() -> list[np.ndarray]:
        async with openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
            inputs = [ids[row % 3] if row % 2 else ids for row in range(12)]
            answers = (client.embeddings.create(model="encoder", input=given) for given in inputs)
            return [_rows(answer) for answer in await asyncio.gather(*answers)]

    for row, found in enumerate(asyncio.run(ask())):
        assert_close(found, expected[row % 3][None] if row % 2 else expected, what="embeddings")


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({}, 400, "input", "input is missing"),
        ({"input": []}, 400, "input", "input has 0 texts: expected 1 to 2048"),
        ({"input": 3}, 400, "input", "input: expected"),
        ({"input": [""] * 2049}, 400, "input", "input has 2049 texts: expected 1 to 2048"),
        ({"input": ["x"] * 50}, 400, None, "the request asks for 50 sequences, which exceeds the 46"),
        ({"input": ["x", [3]]}, 400, "input", ""),
        ({"input": [[3], []]}, 400, "input", "prompt 1 is empty"),
        ({"input": [VOCAB_SIZE]}, 400, "input", f"the token id {VOCAB_SIZE}"),
        ({"input": [3] * 101}, 400, "input", "the text has 101 tokens, which exceeds max_input_len 100"),
        ({"input": [[3], [3] * 101]}, 400, "input", "text 1 has 101 tokens"),
        ({"input": "x", "dimensions": 30}, 400, "dimensions", "dimensions is 30, and the model makes embeddings of 60"),
        ({"input": "x", "encoding_format": "int8"}, 400, "encoding_format", "encoding_format: "),
        ({"input": "x", "pooling": "max"}, 400, "pooling", "unknown field"),
        ({"input": "x", "priority": 3}, 400, "priority", "all requests have one priority here"),
        ({"input": "x", "timeout": 0}, 400, "timeout", "timeout is 0.0: expected seconds above 0"),
        ({"input": "x", "model": "other"}, 404, "model", "there is no model"),
        ({"input": "x", "model": "decoder"}, 400, "model", "'decoder' generates text, by /v1/completions, and /v1/emb"),
    ],
)
def test_bad_requests_name_the_field(server, body, status, param, message):
    answer = httpx.post(f"{server.address}/v1/embeddings", json={"model": "encoder", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert message in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_an_encoder_generates_nothing(server, path, body):
    answer = httpx.post(f"{server.address}{path}", json={"model": "encoder", **body})
    assert answer.status_code == 400
    assert "is an encoder, which generates no text: send texts to /v1/embeddings" in answer.json()["error"]["message"]


def test_what_is_said_of_an_encoder(server, client, ids):
    (listed,) = [entry for entry in client.models.list().data if entry.id == "encoder"]
    assert (listed.max_model_len, listed.max_input_len) == (100, 100)
    tokens = httpx.post(f"{server.address}/tokenize", json={"model": "encoder", "prompt": TEXTS[0]}).json()
    assert tokens["tokens"] == ids[0]
    text = httpx.post(f"{server.address}/detokenize", json={"model": "encoder", "tokens": ids[0]}).json()["prompt"]
    assert TEXTS[0] in text
    load = httpx.get(f"{server.address}/load").json()["models"]["encoder"]
    assert (load["num_active_sequences"], load["capacity"]) == (0, 46)
    before = _counted(server)
    client.embeddings.create(model="encoder", input=ids)
    after = _counted(server)
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == sum(map(len, ids))
    assert after["vllm:request_success_total"] - before["vllm:request_success_total"] == len(ids)


def _counted(server: Server) -> dict[str, float]:
    """The metrics of the encoder, summed over further labels."""
    lines = httpx.get(f"{server.address}/metrics").text.splitlines()
    found: Counter[str] = Counter()
    for name, _, value in (line.rpartition(" ") for line in lines if 'model_name="encoder"' in line):
        found[name.partition("{")[0]] += float(value)
    return found


def test_a_decoder_still_generates(client):
    asked = {"model": "decoder", "prompt": "the", "max_tokens": 3, "extra_body": {"ignore_eos": True}}
    assert client.completions.create(**asked).usage.completion_tokens == 3


def test_one_directory_answers_both(model_dir, ids, expected, tmp_path) -> None:
    engine = make_tiny_engine(tmp_path / "engine", max_seq_len=128)
    with LLM(model_dir, max_batch_size=6, max_input_len=100, max_seq_len=100, max_num_tokens=160) as llm:
        llm.save(engine / "text_encoder")
    with serving(f"both={engine}") as server, openai.OpenAI(base_url=f"{server.address}/v1", api_key="none") as client:
        for name in ("both", "both/text_encoder"):
            assert_close(_rows(client.embeddings.create(model=name, input=ids)), expected, "float32", name)
        assert client.completions.create(model="both", prompt=[5, 6], max_tokens=3).usage.completion_tokens == 3
        listed = {model.id: model.parent for model in client.models.list()}
        assert listed == {"both": None, "both/text_encoder": "both"}
        answer = httpx.post(f"{server.address}/v1/embeddings", json={"input": ids[0]})
        assert answer.json()["model"] == "both"
        assert "both/text_encoder" in httpx.get(f"{server.address}/metrics").text
        refused = httpx.post(f"{server.address}/v1/completions", json={"model": "both/text_encoder", "prompt": [5]})
        assert refused.json()["error"]["code"] == "not_a_generator"
