"""cpu_loop_stress.cc, the event loop over the CPU executor, under the thread sanitizer.

The engine's reader, which runs before any thread starts, is compiled without it: it has tests of its own. The suite
runs fewer requests than a release deserves: ``TRTLLM_LITE_STRESS_REQUESTS=10000 pytest <this file>``.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.batching.cpp_build import (
    BATCHING,
    COMMON,
    CSRC,
    HERE,
    ROOT,
    SAMPLING,
    VARIANTS,
    alone,
    cached_folder,
    compile_objects,
    compile_together,
    link,
)
from tests.unit.csrc.reader_harness import READER, RECORDS, SCHEMAS, generate_sources
from tests.unit.csrc.tiny_engine import MAX_NUM_TOKENS, VOCAB, make_tiny_engine

NUM_REQUESTS = os.environ.get("TRTLLM_LITE_STRESS_REQUESTS", "1000")
MAX_BATCH_SIZE = 8
POISON = VOCAB - 1
PROGRAM = HERE / "cpu_loop_stress.cc"
KERNELS = sorted(ROOT.glob("plugins/*/cpu.cc"))
EVERY_DEVICE = CSRC / "backends.cc"
FOLDERS = (CSRC, CSRC / "cpu", CSRC / "host", CSRC / "ranks")
EXECUTOR = sorted(path for folder in FOLDERS for path in folder.glob("*.cc") if path not in {EVERY_DEVICE, *SAMPLING})


@pytest.fixture(scope="module")
def engine_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny engine for batches of 8, with one poisoned token."""
    tiny = make_tiny_engine()
    tiny.set_limits(MAX_BATCH_SIZE, num_logits=MAX_NUM_TOKENS)
    tiny.poison(POISON)
    path = tmp_path_factory.mktemp("engine") / "rank0.engine"
    path.write_bytes(tiny.to_bytes())
    return path


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config, programs: Path, sampling: Path) -> Path:
    """The compiled program."""
    headers = [path for folder in (CSRC, HERE) for path in folder.rglob("*.h")]
    headers += ROOT.glob("plugins/*/*.h")
    sources = [*BATCHING, *SAMPLING, *EXECUTOR, *READER, *KERNELS, *RECORDS, *SCHEMAS, PROGRAM, Path(__file__)]
    folder = cached_folder(pytestconfig, "cpu-loop-stress", [*headers, *sources])
    executable = folder / PROGRAM.stem
    with alone(folder):
        if not executable.is_file():
            _compile(folder, _tested_elsewhere(programs, sampling), executable)
    return executable


def _tested_elsewhere(programs: Path, sampling: Path) -> list[Path]:
    """Objects that other tests compile with the same flags."""
    with alone(programs):
        objects = compile_together(programs / "tsan", BATCHING, VARIANTS["tsan"], COMMON)
    with alone(sampling):
        return objects + compile_together(sampling / "tsan", SAMPLING, VARIANTS["tsan"])


def _compile(folder: Path, objects: list[Path], executable: Path) -> None:
    """Make the program of ``objects`` and of what only this test compiles."""
    generated = folder / "generated"
    reader = ["-O0", *generate_sources(generated, [kernel.parent.name for kernel in KERNELS])]
    executor = [*reader, "-g1", "-fsanitize=thread", "-DTL_ISA=portable"]  # optimized, it compiles for a minute
    alone_each = [*KERNELS, *sorted(generated.glob("*.cc")), PROGRAM]
    objects = [*objects, *compile_together(folder / "together", EXECUTOR, executor)]
    objects += compile_objects(folder / "executor", alone_each, executor)
    objects += compile_together(folder / "reader", READER, reader)
    link(executable, objects, executor)


def test_random_requests_are_clean(program: Path, engine_path: Path) -> None:
    command = [program, engine_path, NUM_REQUESTS, str(POISON)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    assert not run.stderr
