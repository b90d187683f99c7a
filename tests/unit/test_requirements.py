"""``scripts/common/requirements.sh`` names what an installation from source needs and lacks, with commands."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.real_models import REPOSITORY

PROGRAMS = {"bash", "cat", "id"}


def _machine(path: Path, programs: dict[str, str]) -> dict[str, str]:
    """The environment of a machine that has PROGRAMS and these shell scripts, and nothing else."""
    path.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found is not None
        (path / name).symlink_to(found)
    for name, script in programs.items():
        (path / name).write_text(f"#!{path}/bash\n{script}\n")
        (path / name).chmod(0o755)
    return {"PATH": str(path)}


def _run(environment: dict[str, str], command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    script = 'die() { printf "error: %s\\n" "$*" >&2; exit 1; }; source "$0"; ' + command
    requirements = str(REPOSITORY / "scripts" / "common" / "requirements.sh")
    return subprocess.run(
        ["bash", "-c", script, requirements],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def _python(has: set[str]) -> str:
    """A stand-in of Python 3.13 with these of its optional parts."""
    return f"""case "$2" in
  *version_info\\ \\<*) exit 0 ;;
  *version_info*) echo 3.13 ;;
  *ensurepip*) exit {int("ensurepip" not in has)} ;;
  *INCLUDEPY*) echo ${{0%/*}}{"" if "headers" in has else "/nowhere"} ;;
esac"""


SUDO = "" if os.geteuid() == 0 else "sudo "
NAMED = {
    "ensurepip": f"- modules venv and ensurepip of Python 3.13: {SUDO}apt-get install python3.13-venv",
    "headers": f"- headers of Python 3.13: {SUDO}apt-get install python3.13-dev",
    "compiler": f"- C++20 compiler (g++ 11 or newer; CXX names another): {SUDO}apt-get install g++",
}


@pytest.mark.parametrize(
    "lacks", [{"ensurepip"}, {"headers"}, {"compiler"}, set(NAMED), set()], ids=lambda lacks: "-".join(sorted(lacks))
)
def test_all_that_is_missing_is_named(tmp_path: Path, lacks: set[str]) -> None:
    # A c++ that exits with 1 stands for a compiler that is too old, which fails the version check.
    programs = {"python3": _python(NAMED.keys() - lacks), "apt-get": "", "c++": f"exit {int('compiler' in lacks)}"}
    environment = _machine(tmp_path / "bin", programs)
    (tmp_path / "bin" / "Python.h").touch()
    found = _run(environment, "require_build_tools python3", tmp_path)
    expected = [line for part, line in NAMED.items() if part in lacks]
    first = ["error: an installation from source needs what this machine lacks:"] if lacks else []
    assert found.stderr.splitlines() == first + expected
    assert found.returncode == (1 if lacks else 0)


def test_the_commands_are_those_of_the_machine(tmp_path: Path) -> None:
    environment = _machine(tmp_path / "bin", {"python3": _python(set()), "dnf": ""})
    found = _run(environment, "require_build_tools python3", tmp_path)
    commands = [line.partition(": ")[2] for line in found.stderr.splitlines()[1:]]
    packages = ["python3-libs", "python3.13-devel", "gcc-c++"]
    assert commands == [f"{SUDO}dnf install {package}" for package in packages]


@pytest.mark.parametrize(("wanted", "said"), [("", ""), ("python3.9", " (PYTHON=python3.9)")])
def test_a_python_that_is_too_old_is_not_taken(tmp_path: Path, wanted: str, said: str) -> None:
    old = "exit 1"
    environment = _machine(tmp_path / "bin", {"python3": old, "python3.9": old, "apt-get": ""})
    found = _run(environment | {"PYTHON": wanted}, "find_python", tmp_path)
    expected = f"error: Python 3.11 or newer is missing{said}; set PYTHON to one, or: {SUDO}apt-get install python3\n"
    assert (found.returncode, found.stdout, found.stderr) == (1, "", expected)


def test_the_compiler_here_is_taken_and_an_older_standard_is_not(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"]}
    assert _run(environment | {"CXX": "g++"}, "compiles_cpp20", tmp_path).returncode == 0
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\nexec g++ "$@" -std=c++17\n')
    old.chmod(0o755)
    assert _run(environment | {"CXX": str(old)}, "compiles_cpp20", tmp_path).returncode == 1
