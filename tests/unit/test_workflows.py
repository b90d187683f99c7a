"""GitHub's workflows: they are valid, and the scripts, options, extras and files that they name exist."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from trtllm_lite.cli import cli

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ENGINE_BUILD = ROOT / ".github" / "workflows" / "engine-build.yml"
COMMAND = re.compile(r'(?:^|[ "/])(?:trtllm-lite|\$command)"? (?P<name>[a-z-]+)(?P<rest>[^|>\n]*)', re.MULTILINE)


def _is_valid(*workflows: Path) -> bool:
    """Whether the workflows satisfy GitHub's schema."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    return subprocess.run([*command, *map(str, workflows)], capture_output=True, check=False).returncode == 0


def _load(path: Path) -> Any:
    """A workflow; the YAML parser reads its key "on" as true."""
    return yaml.safe_load(path.read_text())


def _steps(path: Path) -> list[Any]:
    return [step for job in _load(path)["jobs"].values() for step in job["steps"]]


def _scripts() -> set[Path]:
    """The scripts that workflows name, and those that these scripts run."""
    found: set[Path] = set()
    pending = [*WORKFLOWS, ROOT / ".ci" / "run"]
    while pending:
        text = pending.pop().read_text()
        named = {ROOT / name for name in re.findall(r"\bscripts/\w+\.(?:sh|py)\b", text)}
        named |= {ROOT / "scripts" / name for name in re.findall(r'"\$scripts/(\w+\.(?:sh|py))"', text)}
        pending += sorted(path for path in named - found if path.is_file())
        found |= named
    return found


def test_they_are_valid(tmp_path: Path) -> None:
    assert _is_valid(*WORKFLOWS)
    (tmp_path / "bad.yml").write_text(ENGINE_BUILD.read_text().replace("runs-on:", "run-on:"))
    assert not _is_valid(tmp_path / "bad.yml")


def test_their_scripts_exist() -> None:
    scripts = _scripts()
    names = {path.name for path in scripts}
    assert {"test.sh", "engine_build_job.sh", "engine_checks.py", "engine_summary.py", "fetch_model.sh"} <= names
    assert [path for path in scripts if not path.is_file()] == []


@pytest.mark.parametrize("path", [ENGINE_BUILD, ROOT / "scripts" / "engine_build_job.sh"], ids=lambda path: path.name)
def test_their_commands_and_options_exist(path: Path) -> None:
    text = path.read_text()
    if path == ENGINE_BUILD:
        text = "\n".join(step["run"] for step in _steps(path) if "run" in step)
    else:
        text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    calls = list(COMMAND.finditer(text))
    assert calls
    for call in calls:
        command = cli.commands[call["name"]]
        options = {name for parameter in command.params for name in parameter.opts}
        assert set(re.findall(r"--\w+", call["rest"])) <= options, call[0]


def test_the_extras_that_they_install_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = re.findall(r"trtllm_lite\[([\w,-]+)\]", ENGINE_BUILD.read_text())
    assert installed
    assert {name for names in installed for name in names.split(",")} <= extras.keys()


def test_what_their_expressions_name_is_declared() -> None:
    text, triggers = ENGINE_BUILD.read_text(), _load(ENGINE_BUILD)[True]
    inputs = set(re.findall(r"\binputs\.(\w+)", text))
    assert inputs == triggers["workflow_call"]["inputs"].keys() == triggers["workflow_dispatch"]["inputs"].keys()
    assert set(re.findall(r"\bsecrets\.(\w+)", text)) == triggers["workflow_call"]["secrets"].keys()
    named = [step for step in _steps(ENGINE_BUILD) if "id" in step]
    outputs = {(step["id"], name) for step in named for name in re.findall(r'"(\w+)=', step["run"])}
    assert set(re.findall(r"\bsteps\.(\w+)\.outputs\.(\w+)", text)) <= outputs


def test_the_build_files_that_it_takes_exist() -> None:
    configs = _load(ENGINE_BUILD)[True]["workflow_dispatch"]["inputs"]["configs"]["default"]
    assert all((ROOT / name).is_file() for name in json.loads(configs))


def test_actions_are_pinned_by_their_commits() -> None:
    """A tag can be moved to other code, which would run with the permissions of the job."""
    used = [step["uses"] for path in WORKFLOWS for step in _steps(path) if "uses" in step]
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []


def test_only_jobs_that_publish_may_write() -> None:
    jobs = _load(ENGINE_BUILD)["jobs"]
    permissions = {name: job.get("permissions", {}).items() for name, job in jobs.items()}
    allowed = {name: {what for what, how in items if how == "write"} for name, items in permissions.items()}
    assert allowed == {"build": set(), "attest": {"id-token", "attestations"}, "push": {"packages"}}
    assert _load(ENGINE_BUILD)["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if "PREPARE" in str(job) or "engine_build_job" in str(job)] == ["build"]


def test_engines_are_kept_before_anything_is_published() -> None:
    """Engines are uploaded even if GitHub cannot attest or a registry refuses, and attestation can be left out."""
    jobs = _load(ENGINE_BUILD)["jobs"]
    assert any("upload-artifact" in step.get("uses", "") for step in jobs["build"]["steps"])
    assert (jobs["attest"]["needs"], jobs["attest"]["if"]) == ("build", "inputs.attest")
    assert jobs["push"]["needs"] == ["build", "attest"]


def test_a_command_that_fails_before_a_pipe_ends_its_step() -> None:
    """GitHub runs a step with pipefail only where its shell is named."""
    piped = [path for path in WORKFLOWS if any(re.search(r"[^|]\|[^|]", step.get("run", "")) for step in _steps(path))]
    assert ENGINE_BUILD in piped
    assert [path for path in piped if _load(path).get("defaults") != {"run": {"shell": "bash"}}] == []


def _push(directory: Path, push_to: str, password: str) -> subprocess.CompletedProcess[str]:
    """Run the step that pushes as GitHub does; stand-ins for docker and trtllm-lite record their calls."""
    for name in ("docker", "trtllm-lite"):
        stub = directory / name
        stub.write_text(f'#!/bin/sh\n(echo "{name} $*"; [ {name} != docker ] || cat) >> {directory}/calls\n')
        stub.chmod(0o755)
    (step,) = (step["run"] for step in _steps(ENGINE_BUILD) if "docker login" in step.get("run", ""))
    (directory / "step.sh").write_text(step)
    given = {"PUSH_TO": push_to, "PASSWORD": password, "JOB_TOKEN": "job", "USERNAME": "me", "NAME": "Mine"}
    fixed = {"GITHUB_SHA": "c0ffee", "GITHUB_STEP_SUMMARY": "/dev/null", "PATH": f"{directory}:{os.environ['PATH']}"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(directory / "step.sh")]
    return subprocess.run(command, env=given | fixed, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("push_to", "password", "sent"),
    [("ghcr.io/team", "", "job"), ("ghcr.io/team", "mine", "mine"), ("h.example:5000/team", "mine", "mine")],
)
def test_an_engine_is_pushed_with_the_password(push_to: str, password: str, sent: str, tmp_path: Path) -> None:
    assert _push(tmp_path, push_to, password).returncode == 0
    assert (tmp_path / "calls").read_text() == (
        f"docker login {push_to.split('/')[0]} --username me --password-stdin\n{sent}"
        f"trtllm-lite push engines/Mine {push_to}/mine:c0ffee\n"
    )


@pytest.mark.parametrize("push_to", ["h.example/team", "ghcr.io.example/team", "ghcr.io:5000/team"])
def test_the_token_of_the_job_goes_to_githubs_registry_alone(push_to: str, tmp_path: Path) -> None:
    done = _push(tmp_path, push_to, "")
    assert done.returncode == 1
    assert f"::error::{push_to.split('/')[0]} is not ghcr.io" in done.stdout
    assert "pass the secret registry_password" in done.stdout
    assert not (tmp_path / "calls").exists()


def test_no_text_of_others_becomes_part_of_a_command() -> None:
    """Inputs reach scripts as environment variables, because GitHub pastes expressions' values into the script."""
    for path in WORKFLOWS:
        assert [step["run"] for step in _steps(path) if "${{" in step.get("run", "")] == []
