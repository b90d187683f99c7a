"""/classify of a classifier, next to an encoder for embeddings."""

from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.models import VOCAB_SIZE, save_tiny_model
from tests.serve.server import Server, serving
from trtllm_lite import LLM

TEXTS = ["the quick brown fox", "jumps", "over the lazy dog " * 6]
LIMITS = {"max_batch_size": 6, "max_input_len": 100, "max_seq_len": 100, "max_num_tokens": 160}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory):
    """Directories of the engines ``classifier`` and ``encoder``, and what the former says of TEXTS."""
    directory = tmp_path_factory.mktemp("engines")
    save_tiny_model("bert", directory / "classifier_model", classifies=True, id2label={0: "no", 1: "yes"})
    save_tiny_model("bert", directory / "encoder_model")
    for name in ("classifier", "encoder"):
        with LLM(directory / f"{name}_model", **LIMITS) as llm:
            llm.save(directory / name)
            outputs = llm.classify(TEXTS) if name == "classifier" else None
            if outputs is not None:
                expected = outputs
    return directory, expected


@pytest.fixture(scope="module")
def server(engines) -> Iterator[Server]:
    directory, _ = engines
    with serving(*(f"{name}={directory / name}" for name in ("classifier", "encoder"))) as running:
        yield running


def _post(server: Server, path: str, body: dict) -> httpx.Response:
    return httpx.post(f"{server.address}{path}", json=body, timeout=60)


def test_texts_are_classified_as_llm_does(server, engines):
    answer = _post(server, "/classify", {"model": "classifier", "input": TEXTS, "user": "someone"}).json()
    assert (answer["object"], answer["model"]) == ("list", "classifier")
    assert answer["id"].startswith("classify-")
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > len(TEXTS)
    for number, (entry, expected) in enumerate(zip(answer["data"], engines[1], strict=True)):
        assert (entry["index"], entry["label"], entry["num_classes"]) == (number, expected.label, 2)
        np.testing.assert_allclose(entry["probs"], expected.probs, atol=1e-6)
        assert entry.keys() == {"index", "label", "probs", "num_classes"}


def test_one_text_and_token_ids(server):
    for given in (TEXTS[0], [3, 4, 5], [[3, 4, 5]]):
        (entry,) = _post(server, "/classify", {"model": "classifier", "input": given}).json()["data"]
        assert sum(entry["probs"]) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/classify", {}, "input is missing"),
        ("/classify", {"input": []}, "input has 0 texts: expected 1 to 2048"),
        ("/classify", {"input": "x", "dimensions": 2}, "unknown field"),
        ("/classify", {"input": [3] * 101}, "the text has 101 tokens, which exceeds max_input_len 100"),
        ("/classify", {"input": [2 * VOCAB_SIZE]}, f"the token id {2 * VOCAB_SIZE}"),
        (
            "/classify",
            {"input": "x", "model": "encoder"},
            "'encoder' embeds texts, by /v1/embeddings, and /classify is not for it: name a text classifier",
        ),
        ("/v1/embeddings", {"input": "x"}, "'classifier' classifies texts, by /classify, and /v1/embeddings is not"),
        ("/v1/completions", {"prompt": "x"}, "is an encoder, which generates no text: send texts to /classify"),
    ],
)
def test_bad_requests(server, path, body, message):
    answer = _post(server, path, {"model": "classifier", **body})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
