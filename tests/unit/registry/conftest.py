"""Fixtures of the tests of push and pull: engines, and one registry, which runs during all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.builder.checkpoints import save_checkpoint
from tests.unit.registry.servers import serve
from trtllm_lite.cli import cli


def build(directory: Path, *arguments: str) -> Path:
    """An engine made of a small network."""
    limits = ["--max_batch_size", "2", "--max_input_len", "8", "--max_seq_len", "16"]
    checkpoint, engine = save_checkpoint(directory / "checkpoint"), directory / "engine"
    command = ["build", "--checkpoint_dir", str(checkpoint), "--output_dir", str(engine), *limits, *arguments]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    return engine


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine with provenance, which tests must not change."""
    return build(tmp_path_factory.mktemp("engine"), "--provenance")


@pytest.fixture(scope="session")
def plain_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine without provenance, which tests must not change."""
    return build(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host and port of a registry."""
    with serve(tmp_path_factory.mktemp("registry")) as host:
        yield host
