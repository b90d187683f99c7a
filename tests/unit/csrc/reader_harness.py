"""Builds fuzz_engine_reader.cc with AddressSanitizer and UndefinedBehaviorSanitizer, and runs it on files."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.batching.cpp_build import (
    CSRC,
    ROOT,
    VARIANTS,
    alone,
    cached_folder,
    compile_objects,
    compile_together,
    link,
)

PROGRAM = Path(__file__).with_name("fuzz_engine_reader.cc")
READER = sorted((CSRC / "engine").glob("*.cc"))
# What the generated C++ follows from.
RECORDS = (CSRC / "generate_records.py", CSRC.parent / "vocabulary.py", *sorted((CSRC.parent / "engine").glob("*.py")))
SCHEMAS = sorted([*(ROOT / "plugins").glob("*.py"), *(ROOT / "plugins").glob("*/schema.toml")])
# Files handed to one process; a hang then costs one timeout.
BATCH = 250
SECONDS_PER_BATCH = 60
VERDICT = re.compile(r"^(?P<path>[^\n]*?): (?P<verdict>accepted|rejected: )", re.MULTILINE)


def generate_sources(generated: Path, kernels: Sequence[str] = ()) -> list[str]:
    """Write the C++ that follows from schemas and records; returns the flags to compile it and the reader."""
    generate = [sys.executable, ROOT / "plugins/generate_cpp.py", generated, "--isas", "portable"]
    subprocess.run([*generate, "--kernels", *kernels], check=True)
    subprocess.run([sys.executable, CSRC / "generate_records.py", generated], check=True)
    json_package = importlib.util.find_spec("nlohmann_json")
    assert json_package is not None
    assert json_package.submodule_search_locations
    json_include = Path(json_package.submodule_search_locations[0]) / "include"
    return [f"-I{generated}", f"-I{ROOT / 'plugins'}", f"-isystem{json_include}"]


def build_harness(config: pytest.Config) -> Path:
    """Compile the harness in pytest's cache; returns the executable."""
    sources = [PROGRAM, CSRC / "cpu_count.cc"]
    headers = [*CSRC.rglob("*.h"), *ROOT.glob("plugins/*/*.h")]
    folder = cached_folder(config, "engine-reader", [*sources, *READER, *headers, *RECORDS, *SCHEMAS, Path(__file__)])
    executable = folder / PROGRAM.stem
    with alone(folder):
        if not executable.is_file():
            generated = folder / "generated"
            flags = [*VARIANTS["asan"], *generate_sources(generated)]
            sources += [generated / "op_schemas.cc", generated / "records.cc"]
            objects = [*compile_objects(folder, sources, flags), *compile_together(folder / "reader", READER, flags)]
            link(executable, objects, flags)
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
