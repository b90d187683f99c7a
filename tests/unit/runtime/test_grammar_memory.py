"""Runs grammar_memory_cases.py in a process of its own, whose memory nothing else changes."""

import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).parent / "grammar_memory_cases.py"


def test_memory_of_grammars() -> None:
    command = [sys.executable, "-m", "pytest", "-q", str(CASES)]
    finished = subprocess.run(command, cwd=CASES.parents[3], capture_output=True, text=True, timeout=600, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "[100%]" in finished.stdout
