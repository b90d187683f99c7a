"""A server of SmolLM2, started by one command, and OpenAI's own client of it."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.real_models import find_smollm2
from tests.serve.server import Server, serving

MODEL = "smollm2"


@pytest.fixture(scope="package", autouse=True)
def cache(shared_by_workers: Path) -> Iterator[None]:
    """An engine cache of this run of pytest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared_by_workers / "cache"))
        yield


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """A server of one model, called smollm2."""
    limits = ("--max_batch_size", 8, "--max_seq_len", 1024, "--max_input_len", 512)
    ways = ("--dtype", "bfloat16", "--tool_call_parser", "hermes", "--gather_context_logits")
    with serving(f"{MODEL}={find_smollm2()}", *ways, *limits) as running:
        yield running


@pytest.fixture(scope="package")
def client(server: Server) -> Iterator[openai.OpenAI]:
    """A client of the server."""
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made
