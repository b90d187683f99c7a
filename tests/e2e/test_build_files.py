"""A build file of configs/builds, built as it is: the pinned model becomes an engine that answers."""

import hashlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.real_models import FILES, REPOSITORY, find_smollm2
from trtllm_lite.cli import cli
from trtllm_lite.engine.verification import verify_engine
from trtllm_lite.workflows.inspect import inspect_path

CONFIG = REPOSITORY / "configs" / "builds" / "smollm2-int4-cpu.yaml"


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_build_file_becomes_an_engine_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / ".cache" / FILES["smollm2-135m"]
    model.parent.mkdir()
    model.symlink_to(find_smollm2())
    monkeypatch.chdir(tmp_path)  # the path in the file is relative to here
    _run("build", "--config", str(CONFIG), "--output_dir", "engine", "--provenance")
    provenance = verify_engine(Path("engine"))
    digests = {item.name: item.digest.get("sha256") for item in provenance.materials}
    for path in (model, CONFIG):
        assert digests[path.name] == hashlib.sha256(path.read_bytes()).hexdigest()
    given = {"max_batch_size": 16, "max_beam_width": 16, "max_input_len": 1024, "max_seq_len": 2048}
    assert inspect_path(Path("engine")).limits == {**given, "max_num_tokens": 2048, "max_draft_len": 0}
    for prompt, answer in provenance.parameters["checks"]["answers"].items():
        assert answer in _run("generate", "--engine_dir", "engine", "--prompt", prompt, "--max_new_tokens", "16")
