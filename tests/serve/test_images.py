"""Conversations with images, from OpenAI's client to tokens, as the library generates them."""

import base64
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image

from tests.serve.server import Server, serving
from tests.vision_models import save_smolvlm
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vision")
    save_smolvlm(path / "model")
    convert_checkpoint(str(path / "model"), path / "checkpoint")
    build_engine(path / "checkpoint", path / "engine", max_seq_len=512, max_batch_size=4)
    return path / "engine"


@pytest.fixture(scope="module")
def server(engine: Path) -> Iterator[Server]:
    with serving(f"vision={engine}") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


def png(image: np.ndarray) -> bytes:
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def part(content: bytes) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    return {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}


def picture(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def ask(client: openai.OpenAI, *parts: dict[str, Any], **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": list(parts)}]
    return client.chat.completions.create(
        model="vision",
        messages=messages,
        temperature=0,
        max_tokens=8,
        extra_body={"ignore_eos": True, "return_token_ids": True, "skip_special_tokens": False},
        **options,
    )


def test_answers_are_those_of_the_library(client: openai.OpenAI, engine: Path) -> None:
    images = [picture(1, 20, 70), picture(2, 64, 64)]
    text = {"type": "text", "text": "which is it?"}
    answer = ask(client, part(png(images[0])), text, part(png(images[1])))
    with LLM(engine) as llm:
        parts = [{"type": "image", "image": images[0]}, text, {"type": "image", "image": images[1]}]
        params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        expected = llm.chat([{"role": "user", "content": parts}], params)
    assert answer.choices[0].token_ids == list(expected.outputs[0].token_ids)
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    streamed = ask(client, part(png(images[0])), text, part(png(images[1])), stream=True)
    text_of_stream = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text_of_stream == answer.choices[0].message.content != ""


def _bomb() -> bytes:
    """A PNG of a few bytes whose header states 10^9 pixels."""
    header = struct.pack(">IIBBBBB", 40_000, 25_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, "URLs of other hosts are not fetched"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "URLs of other hosts are not fetched"),
        ({"type": "image", "image": "/etc/passwd"}, "is not in a data URL"),
        (part(b"no image"), "in no known format"),
        (part(_bomb()), "exceeds max_image_pixels"),
        ({"type": "video_url", "video_url": {"url": "data:,"}}, "video_url"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "input_audio"),
        ({"type": "file", "file": {"file_id": "f"}}, "file"),
    ],
)
def test_other_media_are_refused(client: openai.OpenAI, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        ask(client, wrong, {"type": "text", "text": "what is it?"})
    assert len(ask(client, part(png(picture(3, 8, 8)))).choices[0].token_ids) == 8


def test_placeholders_in_texts_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="has 2 times <image> and 1 images"):
        ask(client, part(png(picture(3, 8, 8))), {"type": "text", "text": "<image>"})
