"""Builds fuzz_engine_reader.cc with AddressSanitizer and UndefinedBehaviorSanitizer, and runs it on files."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.unit.batching.cpp_build import compile_objects, link

ROOT = Path(__file__).parents[3]
CSRC = ROOT / "trtllm_lite" / "csrc"
INCLUDES = (ROOT / "plugins",)
SOURCES = (
    Path(__file__).with_name("fuzz_engine_reader.cc"),
    CSRC / "cpu_count.cc",
    *sorted((CSRC / "engine").glob("*.cc")),
)
FLAGS = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# Files handed to one process; a hang then costs one timeout.
BATCH = 250
SECONDS_PER_BATCH = 60
VERDICT = re.compile(r"^(?P<path>[^\n]*?): (?P<verdict>accepted|rejected: )", re.MULTILINE)


def build_harness(directory: Path) -> Path:
    """Compile the harness into ``directory``; returns the executable."""
    generated = directory / "generated"
    generate = [sys.executable, ROOT / "plugins/generate_cpp.py", generated, "--isas", "portable"]
    subprocess.run(generate, check=True)
    subprocess.run([sys.executable, CSRC / "generate_records.py", generated], check=True)
    json_package = importlib.util.find_spec("nlohmann_json")
    assert json_package is not None
    assert json_package.submodule_search_locations
    json_include = Path(json_package.submodule_search_locations[0]) / "include"
    flags = [*FLAGS, *(f"-I{path}" for path in INCLUDES), f"-I{generated}", f"-isystem{json_include}"]
    sources = [*SOURCES, generated / "op_schemas.cc", generated / "records.cc"]
    executable = directory / "fuzz_engine_reader"
    link(executable, compile_objects(directory, sources, flags), flags)
    return executable


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
