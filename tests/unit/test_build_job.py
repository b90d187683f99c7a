"""The job that builds an engine twice, compares, verifies, and says what it built."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.builder.checkpoints import save_checkpoint
from trtllm_lite.engine.verification import verify_engine

SCRIPTS = Path(__file__).parents[2] / "scripts"


def _run(directory: Path, command: Path) -> subprocess.CompletedProcess[str]:
    """Run the job of ``directory``/job.yaml."""
    arguments = ["bash", str(SCRIPTS / "engine_build_job.sh"), str(directory / "job.yaml"), str(directory / "engine")]
    environment = os.environ | {"TRTLLM_LITE": str(command), "PYTHON": sys.executable}
    environment["GITHUB_STEP_SUMMARY"] = str(directory / "summary.md")
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)


def test_it_builds_twice_verifies_and_sums_up(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint")
    limits = "  max_batch_size: 2\n  max_input_len: 8\n  max_seq_len: 16\n"
    (tmp_path / "job.yaml").write_text(f"build:\n  checkpoint_dir: {tmp_path / 'checkpoint'}\n{limits}")
    done = _run(tmp_path, Path(sys.executable).parent / "trtllm-lite")
    assert done.returncode == 0, done.stderr
    provenance = verify_engine(tmp_path / "engine")
    assert provenance.materials[-1].name == "job.yaml"
    described = json.loads((tmp_path / "engine.json").read_text())
    assert described["limits"]["max_batch_size"] == 2
    summary = (tmp_path / "summary.md").read_text()
    assert "| model | TestForCausalLM, " in summary
    assert f"| sha256 | {provenance.files['rank0.engine']} |" in summary
    assert "| accuracy | not measured, because the build file has no max_accuracy_loss |" in summary
    assert f"| job.yaml | sha256 {provenance.materials[-1].digest['sha256']} |" in summary
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint", "engine", "engine.json", "job.yaml", "summary.md"]


def _command(directory: Path, inspect: str, generate: str = "", checks: object = None) -> Path:
    """A stand-in for trtllm-lite that runs the shell code ``inspect`` and ``generate`` for these commands.

    An engine that it builds is a file with the path of the cache.
    """
    definition = {"externalParameters": {"build": {}, **({} if checks is None else {"checks": checks})}}
    (directory / "statement").write_text(json.dumps({"predicate": {"buildDefinition": definition}}))
    engine = 'mkdir -p "$5"; echo "${XDG_CACHE_HOME:-none}" > "$5/rank0.engine"'
    build = f'{engine}; cp {directory}/statement "$5/provenance.json"'
    command = directory / "command"
    cases = f"build) {build};; inspect) {inspect};; generate) {generate};;"
    command.write_text(f"#!/bin/bash\necho $1 >> {directory}/calls\ncase $1 in {cases} esac\n")
    command.chmod(0o755)
    return command


def _files(directory: Path) -> list[str]:
    """What a job leaves in ``directory``, without the files of :func:`_command`."""
    return sorted({path.name for path in directory.iterdir()} - {"command", "statement", "calls"})


def test_builds_that_differ_end_it(tmp_path: Path) -> None:
    """A build may depend on what older runs left in the cache: then both engines stay, and none is published."""
    (tmp_path / "engine.json").write_text("of an older engine")
    done = _run(tmp_path, _command(tmp_path, 'echo "why: $*"; exit 3'))
    assert done.returncode == 1
    assert "error: two builds of" in done.stderr
    first, second = (tmp_path / "engine.differs" / name for name in "12")
    assert f"why: inspect {first} --diff {second}" in done.stdout
    assert (first / "rank0.engine").read_text() != (second / "rank0.engine").read_text()
    assert _files(tmp_path) == ["engine.differs"]


def test_a_description_that_fails_leaves_no_half(tmp_path: Path) -> None:
    assert _run(tmp_path, _command(tmp_path, 'echo "{"; exit 1', checks={"reproducible": False})).returncode == 1
    assert (tmp_path / "calls").read_text().split() == ["build", "verify", "inspect"]
    assert _files(tmp_path) == ["engine"]


def test_an_engine_is_asked_for_the_answers_of_its_file(tmp_path: Path) -> None:
    checks = {"reproducible": False, "answers": {"- 'France' is": "Paris", "b": "c"}}
    generate = '[ "$4" = "--prompt=b" ] && echo abcd || { echo "$4" > asked; echo " Paris."; }'
    _run(tmp_path, _command(tmp_path, "exit 1", generate.replace("asked", f"{tmp_path}/asked"), checks))
    assert (tmp_path / "calls").read_text().split() == ["build", "verify", "generate", "generate", "inspect"]
    assert (tmp_path / "asked").read_text() == "--prompt=- 'France' is\n"


@pytest.mark.parametrize("generate", ["echo Lyon", "exit 1"])
def test_an_engine_with_another_answer_is_refused(generate: str, tmp_path: Path) -> None:
    checks = {"reproducible": False, "answers": {"a": "Paris"}}
    done = _run(tmp_path, _command(tmp_path, "exit 1", generate, checks))
    assert done.returncode == 1
    assert "answers 'a' with 'Lyon\\n', expected 'Paris' in it" in done.stderr or "exit status 1" in done.stderr
    assert _files(tmp_path) == ["engine.refused"]


def _write(directory: Path, accuracy: object) -> Path:
    """The files of an engine that the summary is made of."""
    engine = directory / "engine"
    engine.mkdir()
    described = {
        "model": {"architecture": "A|b<script>", "num_parameters": 1000},
        **{"target": "sm_90", "qformat": "int8_wo", "limits": {}, "memory": {}, "accuracy": accuracy},
    }
    definition = {"externalParameters": {"build": {"max_accuracy_loss": 1.0}}, "resolvedDependencies": []}
    statement = {
        "subject": [{"name": "rank0.engine", "digest": {"sha256": "00"}}],
        "predicate": {"buildDefinition": definition},
    }
    licences = [{"license": {"id": "MIT"}}, {"license": {"name": "mine"}}, {"expression": "A AND B"}]
    components = [{"type": "machine-learning-model", "licenses": [licence]} for licence in licences]
    bill = {"components": [*components, {"type": "library", "licenses": [{"license": {"id": "Zlib"}}]}]}
    files = (("engine.json", described), ("engine/provenance.json", statement), ("engine/sbom.json", bill))
    for name, content in files:
        (directory / name).write_text(json.dumps(content))
    return engine


@pytest.fixture
def summary(tmp_path: Path) -> str:
    """The summary of an engine whose accuracy was measured."""
    accuracy = {"perplexity": 10.05, "reference_perplexity": 10.0, "kl_divergence": 0.25, "top1_agreement": 0.9}
    engine = _write(tmp_path, accuracy | {"num_tokens": 2000, "dataset": "a text"})
    return _sum_up(engine)


def _sum_up(engine: Path) -> str:
    command = [sys.executable, str(SCRIPTS / "engine_summary.py"), str(engine)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_it_says_if_nothing_was_built_again(summary: str, tmp_path: Path) -> None:
    assert "| bytes | the same when it was built again with empty caches |" in summary
    path = tmp_path / "engine" / "provenance.json"
    statement = json.loads(path.read_text())
    statement["predicate"]["buildDefinition"]["externalParameters"]["checks"] = {"reproducible": False}
    path.write_text(json.dumps(statement))
    assert "| bytes | not built again (reproducible: false) |" in _sum_up(tmp_path / "engine")


def test_the_proof_of_accuracy_is_summed_up(summary: str) -> None:
    assert "| perplexity | 10.050, +0.50% of 10.000 (at most +1.0%) |" in summary
    assert "| same first choice | 90.00% of 2,000 tokens |" in summary
    assert "| licence of the model | A AND B, MIT, mine |" in summary


def test_text_of_others_stays_text(summary: str) -> None:
    assert "| model | A&#124;b&#60;script&#62;, 1,000 parameters |" in summary
