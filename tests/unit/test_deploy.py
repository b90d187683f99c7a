"""The files in configs/deploy are understood by the server and by the programs that read them."""

import re
import shutil
import subprocess
import sys
import tomllib
from configparser import RawConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "configs" / "deploy"
UNIT = DEPLOY / "trtllm-lite.service"
DOCKERFILE = DEPLOY / "Dockerfile"
INSTRUCTIONS = {
    *("FROM", "ARG", "RUN", "COPY", "WORKDIR", "USER", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"),
}


class _Repeated(dict[str, list[str]]):
    """Keeps all values of a key, as systemd does for lists."""

    def __setitem__(self, key: str, value: list[str]) -> None:
        super().__setitem__(key, [*self.get(key, []), *value] if isinstance(value, list) else value)


def service(path: Path) -> dict[str, str]:
    """The settings of [Service], in which repeated ones are joined by line ends."""
    parser = RawConfigParser(strict=False, dict_type=_Repeated, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return dict(parser["Service"])


def verify(unit: Path) -> str:
    """What systemd says of a unit."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)], capture_output=True, text=True
    )
    return f"{done.stderr}{done.stdout}" if done.returncode else done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with a program that exists."""
    program = Path(sys.executable)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/trtllm-lite/bin/trtllm-lite", str(program)))
    return unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_every_line(installed: Path) -> None:
    assert verify(installed) == ""
    installed.write_text(installed.read_text().replace("ProtectHome=yes", "ProtectHouse=yes"))
    assert "ProtectHouse" in verify(installed)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_calls_the_exposure_low(installed: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", str(installed)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_systemd_waits_longer_than_the_server_drains() -> None:
    found = service(UNIT)
    drain = re.search(r"--drain_timeout (\d+)", found["ExecStart"])
    assert drain is not None
    assert int(found["TimeoutStopSec"]) > int(drain[1])
    assert (found["KillSignal"], found["Restart"]) == ("SIGTERM", "on-failure")


def test_the_drop_in_for_gpus_changes_what_the_unit_says() -> None:
    assert {"PrivateDevices", "MemoryDenyWriteExecute"} <= set(service(UNIT)) & set(service(DEPLOY / "gpu.conf"))


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def test_the_image_is_made_of_two_stages_and_runs_as_nobody_special() -> None:
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS
    starts = [place for place, (name, _) in enumerate(found) if name == "FROM"]
    assert len(starts) == 2
    last = dict(found[starts[1] :])
    assert int(last["USER"]) > 0
    assert "/ready" in last["HEALTHCHECK"]
    assert (last["EXPOSE"], last["ENTRYPOINT"]) == ("8000", '["trtllm-lite", "serve"]')


def test_the_image_has_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r'EXTRAS="([\w,-]+)"', DOCKERFILE.read_text())
    assert len(named) == 2  # the extras of servers, and those of Ray's nodes
    assert {extra for names in named for extra in names.split(",")} <= set(project["optional-dependencies"])


def test_the_build_is_sent_what_the_wheel_is_made_of() -> None:
    """The Docker build context has every path of the repository's root that pyproject.toml and CMakeLists.txt name."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    assert {"pyproject.toml", "README.md", "LICENSE", "CMakeLists.txt", "plugins", "trtllm_lite"} == sent
    assert all((ROOT / name).exists() for name in sent)
