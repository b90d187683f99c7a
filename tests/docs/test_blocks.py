"""The blocks of README.md and docs/ do what they say, with tiny random models in place of those that they name."""

import json
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import httpx
import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.docs.blocks import PAGES, ROOT, Block, blocks, blocks_of, commands_of
from tests.serve.server import Server
from tests.unit.test_kubernetes import VERSION
from trtllm_lite.cli import cli
from trtllm_lite.cli.build import build
from trtllm_lite.cli.build_file import read_build_file
from trtllm_lite.cli.serve import serve
from trtllm_lite.serve.routes import ROUTES

CHART = ROOT / "configs" / "deploy" / "helm" / "trtllm-lite"
ADDRESS = "http://localhost:8000"
STAND_INS = {"HuggingFaceTB/SmolLM2-135M-Instruct": "model", "sentence-transformers/all-MiniLM-L6-v2": "encoder"}
# Third-party programs, whose arguments are not checked.
OTHERS = {"docker", "helm", "kubectl", "ray", "serve", "scp", "ssh", "tritonserver", "zensical", "lm_eval"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("block", blocks("bash"), ids=str)
def test_commands_are_what_the_programs_take(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "person.json").write_text("{}")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for file in blocks_of(block.page):
        if file.title and "/" not in file.title:
            (tmp_path / file.title).write_text(file.text)
    monkeypatch.chdir(tmp_path)
    for words in commands_of(block.text):
        check(words)


def check(words: Sequence[str]) -> None:
    """Raise AssertionError or click.UsageError for an invalid command."""
    program, *arguments = words
    if program == "trtllm-lite":
        parse(arguments)
    elif program in ("bash", "python") and arguments[0] != "-m":
        assert (ROOT / arguments[0]).is_file(), words
    elif program == "pip":
        for extras in re.findall(r"(?:trtllm_lite|\.)\[([\w,-]+)\]", " ".join(arguments)):
            assert set(extras.split(",")) <= EXTRAS.keys(), words
    elif program == "curl":
        request_of(words)
    elif program != "python":
        assert program in OTHERS, f"{program} is no program that these documents use"


def parse(arguments: Sequence[str]) -> None:
    """Let ``trtllm-lite`` parse the command's arguments, pretending that its input files exist."""
    command: click.Command | None = cli
    name: str | None = "trtllm-lite"
    while isinstance(command, click.Group):
        name, command, arguments = command.resolve_command(click.Context(command), list(arguments))
    assert command is not None
    command.make_context(name, list(arguments))


def request_of(words: Sequence[str]) -> tuple[str, dict[str, Any] | None]:
    """The path and body of a curl request. Raises AssertionError if its form is not one that documents use."""
    _, url, *rest = words
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    assert options.keys() <= {"-H", "-d"}, words
    path = urlsplit(f"//{url}").path
    assert url.startswith("localhost:8000/"), words
    assert path in ROUTES or path.startswith("/v2/models/"), words
    return path, json.loads(options["-d"]) if "-d" in options else None


@pytest.mark.parametrize("block", [block for block in blocks("bash") if "curl" in block.text and block.runs], ids=str)
def test_a_server_takes_the_requests(block: Block, server: Server) -> None:
    for words in commands_of(block.text):
        if words[0] == "curl":
            path, body = request_of(words)
            answer = httpx.post(f"{server.address}{path}", json=body, timeout=60)
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.stem
)
def test_programs_run(page: Path, world: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page run in one namespace; blocks that cannot run must at least parse."""
    replaced = {f'"{name}"': f'"{stand_in}"' for name, stand_in in STAND_INS.items()}
    if ADDRESS in page.read_text():
        replaced[ADDRESS] = request.getfixturevalue("server").address
    monkeypatch.chdir(world)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in blocks_of(page):
        if block.language == "python":
            text = "\n" * block.line + block.text
            for name, stand_in in replaced.items():
                text = text.replace(name, stand_in)
            program = compile(text, str(page), "exec")
            if block.runs:
                exec(program, namespace)


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_files_are_what_reads_them_takes(block: Block, tmp_path: Path) -> None:
    path, found = tmp_path / "file.yaml", yaml.safe_load(block.text)
    path.write_text(block.text)
    if "build" in found:
        with click.Context(build):
            assert read_build_file(path, build).build
    elif "apiVersion" in found:
        kubernetes_validate.validate(found, VERSION, strict=True)
    elif "jobs" in found:
        called = yaml.safe_load((ROOT / ".github" / "workflows" / "engine-build.yml").read_text())
        (job,) = found["jobs"].values()
        assert job["with"].keys() <= called[True]["workflow_call"]["inputs"].keys()  # YAML 1.1 reads "on" as true
    elif "rules" in found:
        exposed = (ROOT / "docs" / "reference" / "metrics.md").read_text()
        assert all(f"`{rule['seriesQuery'].partition('{')[0]}`" in exposed for rule in found["rules"]["custom"])
    elif found.keys() <= (defaults := yaml.safe_load((CHART / "values.yaml").read_text())).keys():
        merged = {key: defaults[key] | value if isinstance(value, dict) else value for key, value in found.items()}
        jsonschema.validate(defaults | merged, json.loads((CHART / "values.schema.json").read_text()))
    else:
        serve.make_context("serve", ["engine", "--config", str(path)])


def test_wrong_commands_are_noticed() -> None:
    with pytest.raises(click.UsageError):
        check(["trtllm-lite", "build", "--checkpoint", "ckpt", "--output_dir", "engine"])
    with pytest.raises(click.UsageError):
        check(["trtllm-lite", "bench", "latency"])
    for words in (
        ["pip", "install", "trtllm_lite[none]"],
        ["bash", "scripts/none.sh"],
        ["none"],
        ["curl", "a.example/"],
    ):
        with pytest.raises(AssertionError):
            check(words)
