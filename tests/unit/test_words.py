"""The check of words finds comments and docstrings that begin without a subject, in every language, and no others."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_words.py"
FILES = {
    "module.py": '''"""Of each token, or none."""

# Counts the tokens
# of a request.
COUNTS = {}  # Behind the prompt.
NAME = "# Of no comment"


def first() -> None:
    """From a row of the cache."""
    # From 64 rows on, tiles are computed.


class Backend:
    size: int
    """As :meth:`Backend.size`."""
''',
    "kernel.cuh": """// Copies a row.
// Of one line with the line before.
int rows;  // Those of a block.
const char* url = "https://example";
// As Sampler::draw, for a row.
int draw();
// As rows are few, this is called once.
int redraw();  // As draw(), once more.
int kept;  // Or none.
""",
    "build.sh": "#!/usr/bin/env bash\n# Also removes the folder.\n# By default, nothing is removed.\nrm x\n",
    "notes.txt": "# Of no language that is checked.\n",
}
FOUND = {"module.py": [1, 5, 10, 16], "kernel.cuh": [3, 5, 8, 9], "build.sh": [2]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


def check(folder: Path, *paths: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *paths], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("name", FOUND)
def test_every_text_without_a_subject_is_named(folder: Path, name: str) -> None:
    done = check(folder, name)
    assert [line.split(" ", 1)[0] for line in done.stdout.splitlines()] == [f"{name}:{at}:" for at in FOUND[name]]
    assert done.returncode == 1


def test_a_folder_of_sound_texts_passes(folder: Path) -> None:
    assert check(folder, "notes.txt").returncode == 0
    (folder / "module.py").write_text(
        '"""Offsets of tokens."""\n\n# By default, all count.\nCOUNT = 1  # token of a row\n'
    )
    done = check(folder, "module.py")
    assert (done.stdout, done.returncode) == ("", 0)
