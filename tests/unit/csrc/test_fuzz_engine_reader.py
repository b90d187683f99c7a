"""Whatever the bytes of an engine are, the reader accepts or refuses them: no crash, no over-read, no hang.

What the reader accepts must also be safe to execute: mutants that pass all checks run a step.
"""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rounds import rounds
from tests.unit.csrc.mutations import KINDS
from tests.unit.csrc.reader_harness import verdicts
from tests.unit.csrc.tiny_engine import TinyEngine

MUTANTS_PER_KIND = rounds(400)

RUN_ONE_STEP = """
import sys
import numpy as np
from trtllm_lite import _core, _testing
from trtllm_lite._core import Engine, CpuExecutor
from trtllm_lite.errors import TrtllmLiteError

i32 = lambda *values: np.array(values, np.int32)
for path in sys.argv[1:]:
    engine = Engine(path)
    for isa in (_testing.supported_isas()[0], "portable"):
        try:
            executor = CpuExecutor(engine, num_threads=2, isa=isa)
            for past in (0, 15):
                tables = np.arange(6, dtype=np.int32).reshape(2, 3)
                _core.step(executor, np.arange(20, dtype=np.int32), i32(19, 1), i32(past, 3), tables, i32(18, 19))
            if '"token_rows"' not in engine.plan:
                continue
            loop = _core.EventLoop(executor, max_batch_size=1, max_input_len=20, max_seq_len=24, max_num_tokens=20)
            params = _core.sampling.SamplingParams()
            params.max_tokens = 2
            size = 16 if '"uint8"' in engine.plan else 64
            rows = _core.PromptRows(np.arange(20, dtype=np.int32), np.zeros((20, size), np.uint8), b"0" * 320)
            loop.submit(np.zeros(20, np.int32), params, rows=rows)
            while not loop.poll(5.0)[1]:
                pass
        except TrtllmLiteError:
            pass
"""


def write_mutants(kind: str, engine: TinyEngine, directory: Path) -> list[Path]:
    """``MUTANTS_PER_KIND`` files, the same every time; every other one of an engine that takes rows or bytes, too."""
    rng, with_rows, with_bytes = random.Random(kind), engine.copy(), engine.copy()
    with_rows.take_rows()
    with_bytes.take_rows(dtype="uint8")
    engines = (engine, with_rows, engine, with_bytes) if kind != "bytes" else (engine,)
    paths = []
    for number in range(MUTANTS_PER_KIND):
        path = directory / f"{number:05}.engine"
        path.write_bytes(KINDS[kind](rng, engines[number % len(engines)]))
        paths.append(path)
    return paths


def test_accepts_the_engine_itself(harness: Path, tiny: TinyEngine, tmp_path: Path) -> None:
    path = tmp_path / "valid.engine"
    path.write_bytes(tiny.to_bytes())
    assert verdicts(harness, [path]) == [True]


@pytest.mark.parametrize("kind", KINDS)
def test_mutants(kind: str, harness: Path, tiny: TinyEngine, tmp_path: Path) -> None:
    paths = write_mutants(kind, tiny, tmp_path)
    accepted = [path for path, verdict in zip(paths, verdicts(harness, paths), strict=True) if verdict]
    assert len(accepted) < MUTANTS_PER_KIND // 2
    if kind == "bytes":  # nothing puts the checksums right again, so not a bit may differ
        assert all(path.read_bytes() == tiny.to_bytes() for path in accepted)
    if accepted:
        command = [sys.executable, "-c", RUN_ONE_STEP, *accepted]
        run = subprocess.run(command, capture_output=True, timeout=120, check=False)
        assert run.returncode == 0, run.stderr.decode(errors="replace")[-4000:]


def test_every_truncation_is_refused(harness: Path, tiny: TinyEngine, tmp_path: Path) -> None:
    data = tiny.to_bytes()
    paths = []
    for size in [*range(0, 100), *range(100, len(data), 97)]:
        path = tmp_path / f"{size}.engine"
        path.write_bytes(data[:size])
        paths.append(path)
    assert not any(verdicts(harness, paths))
