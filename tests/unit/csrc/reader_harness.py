"""Runs fuzz_engine_reader.cc, which is built with AddressSanitizer and UndefinedBehaviorSanitizer, on files."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

PROGRAM = Path(__file__).with_name("fuzz_engine_reader.cc")
# The number of files that one process reads; a hang costs one timeout.
BATCH = 250
SECONDS_PER_BATCH = 60
VERDICT = re.compile(r"^(?P<path>[^\n]*?): (?P<verdict>accepted|rejected: )", re.MULTILINE)


def verdicts(harness: Path, files: Sequence[Path]) -> list[bool]:
    """Whether each file is accepted. A crash, a sanitizer report or a hang is an AssertionError."""
    result: list[bool] = []
    for start in range(0, len(files), BATCH):
        batch = files[start : start + BATCH]
        run = subprocess.run([harness, *batch], capture_output=True, timeout=SECONDS_PER_BATCH, check=False)
        assert run.returncode == 0, run.stderr.decode(errors="replace")[-4000:]
        assert not run.stderr
        found = {match["path"]: match["verdict"] for match in VERDICT.finditer(run.stdout.decode(errors="replace"))}
        assert set(found) == {str(path) for path in batch}
        result += [found[str(path)] == "accepted" for path in batch]
    return result
