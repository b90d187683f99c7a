"""cpu_loop_stress.cc, the event loop over the CPU executor, under the thread sanitizer.

The engine's reader, which runs before any thread starts, is compiled without it: it has tests of its own. The suite
runs fewer requests than a release deserves: ``TRTLLM_LITE_STRESS_REQUESTS=10000 pytest <this file>``.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.batching.cpp_build import BATCHING, CSRC, HERE, ROOT, VARIANTS, cached_folder, compile_objects, link
from tests.unit.csrc.tiny_engine import MAX_NUM_TOKENS, VOCAB, make_tiny_engine

NUM_REQUESTS = os.environ.get("TRTLLM_LITE_STRESS_REQUESTS", "1000")
MAX_BATCH_SIZE = 8
POISON = VOCAB - 1
PROGRAM = HERE / "cpu_loop_stress.cc"
KERNELS = sorted(ROOT.glob("plugins/*/cpu.cc"))
READER = sorted((CSRC / "engine").glob("*.cc"))
EVERY_DEVICE = CSRC / "backends.cc"
FOLDERS = (CSRC, CSRC / "cpu", CSRC / "sampling")
EXECUTOR = sorted(path for folder in FOLDERS for path in folder.glob("*.cc") if path != EVERY_DEVICE)


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
def program(pytestconfig: pytest.Config, programs: Path) -> Path:
    """The compiled program."""
    headers = [path for folder in (CSRC, HERE) for path in folder.rglob("*.h")]
    plugins = [path for path in ROOT.glob("plugins/*/*") if path.suffix in {".h", ".toml"}]
    records = [CSRC / "generate_records.py", CSRC.parent / "vocabulary.py", *(CSRC.parent / "engine").glob("*.py")]
    sources = [*BATCHING, *EXECUTOR, *READER, *KERNELS, *records, PROGRAM, Path(__file__)]
    folder = cached_folder(pytestconfig, "cpu-loop-stress", [*headers, *plugins, *sources])
    executable = folder / PROGRAM.stem
    if executable.is_file():
        return executable
    generated = folder / "generated"
    names = [kernel.parent.name for kernel in KERNELS]
    generate = [sys.executable, ROOT / "plugins/generate_cpp.py", generated, "--isas", "portable", "--kernels", *names]
    subprocess.run(generate, check=True)
    subprocess.run([sys.executable, CSRC / "generate_records.py", generated], check=True)
    json_package = importlib.util.find_spec("nlohmann_json")
    assert json_package is not None
    assert json_package.submodule_search_locations
    json_include = Path(json_package.submodule_search_locations[0]) / "include"
    reader = ["-O0", f"-I{generated}", f"-I{ROOT / 'plugins'}", f"-isystem{json_include}"]
    executor = [*reader, "-g1", "-fsanitize=thread", "-DTL_ISA=portable"]  # optimized, it compiles for a minute
    objects = compile_objects(programs / "tsan", BATCHING, VARIANTS["tsan"])
    instrumented = [*EXECUTOR, *KERNELS, *sorted(generated.glob("*.cc")), PROGRAM]
    objects += compile_objects(folder / "executor", instrumented, executor)
    objects += compile_objects(folder / "reader", READER, reader)
    link(executable, objects, executor)
    return executable


def test_random_requests_are_clean(program: Path, engine_path: Path) -> None:
    command = [program, engine_path, NUM_REQUESTS, str(POISON)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    assert not run.stderr
