"""cpu_encoder_stress.cc, the event loop of an encoder over the CPU executor, under the thread sanitizer."""

import os
from pathlib import Path

import pytest

from tests.models import save_tiny_model
from tests.unit.sanitized import PARTS, Sanitized
from trtllm_lite._core import SCRATCH_BYTES_PER_THREAD, SHARED_SCRATCH_BYTES, CpuExecutor, EncoderLoop, Engine
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint

NUM_TEXTS = os.environ.get("TRTLLM_LITE_STRESS_REQUESTS", "120")
LIMITS = {"max_batch_size": 6, "max_input_len": 300, "max_seq_len": 300, "max_num_tokens": 400}
PROGRAM = Path(__file__).with_name("cpu_encoder_stress.cc")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with texts that are long enough for their steps to be paused."""
    made = tmp_path_factory.mktemp("encoder")
    save_tiny_model("bert", made / "model", max_position_embeddings=400)
    convert_checkpoint(str(made / "model"), made / "checkpoint")
    return made


def test_texts_of_several_threads_are_embedded(sanitized: Sanitized, directory: Path) -> None:
    build_engine(directory / "checkpoint", directory / "engine", **LIMITS)
    program = sanitized.program("tsan", PROGRAM.stem, [PROGRAM], list(PARTS))
    sanitized.run(program, directory / "engine" / "rank0.engine", NUM_TEXTS)


@pytest.mark.parametrize(("max_input_len", "beside"), [(300, True), (128, False)])
def test_memory_beside_a_paused_step_is_planned(directory: Path, max_input_len: int, beside: bool) -> None:
    limits = LIMITS | {"max_input_len": max_input_len}
    name = f"engine-{max_input_len}"
    planned = build_engine(directory / "checkpoint", directory / name, **limits).memory.workspace
    executor = CpuExecutor(Engine(str(directory / name / "rank0.engine")), num_threads=2)
    scratch = 2 * SCRATCH_BYTES_PER_THREAD + SHARED_SCRATCH_BYTES
    before = executor.memory["workspace"] - scratch
    loop = EncoderLoop(executor, max_batch_size=6, max_input_len=max_input_len, max_num_tokens=400)
    after = executor.memory["workspace"] - scratch
    assert (after > before) == beside
    unread = 4096  # at most: inputs that the plan does not read, which the executor has too
    assert planned <= after <= planned + unread
    loop.shut_down(drain=True)
