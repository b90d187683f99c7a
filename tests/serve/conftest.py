"""A server of SmolLM2, started by one command."""

from collections.abc import Iterator

import pytest

from tests.real_models import find_smollm2
from tests.serve.server import Server, serving


@pytest.fixture(scope="package", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty engine cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """A server of one model, called smollm2."""
    limits = ("--max_batch_size", 8, "--max_seq_len", 1024, "--max_input_len", 512)
    with serving(
        f"smollm2={find_smollm2()}", "--dtype", "bfloat16", *limits, "--tool_call_parser", "hermes"
    ) as running:
        yield running
