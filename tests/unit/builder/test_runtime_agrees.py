"""The C++ runtime runs the builder's engines: with the network's logits, in the memory that was predicted."""

from pathlib import Path

import numpy as np
import pytest

from tests.plugins.harness import product_dtype
from tests.tolerances import ROUNDED_TOLERANCES, assert_close
from tests.unit.builder.checkpoints import LIMITS, save_checkpoint
from tests.unit.builder.networks import VARIANTS, network
from tests.unit.builder.scenario import Sequences
from trtllm_lite import _core, _testing
from trtllm_lite.builder import build_engine, plan_memory


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_the_runtime(variant: str, tmp_path: Path) -> None:
    manifest = build_engine(save_checkpoint(tmp_path / "checkpoint", variant), tmp_path / "engine", **LIMITS)
    groups = len(manifest.kv_cache.groups)
    tables = {"tokens_per_block": LIMITS["tokens_per_block"], "num_blocks": 9 * groups, "num_groups": groups}
    state = Sequences(VARIANTS[variant], num_seqs=3, **tables)
    engine = _core.Engine(str(tmp_path / "engine" / "rank0.engine"))
    executor = _core.CpuExecutor(engine, num_threads=2, num_blocks=9 * groups)
    for lens in ([7, 1, 4], [1, 1, 1], [1, 6, 2]):
        feeds = state.feeds(lens)
        step = (feeds["token_ids"], np.array(lens, np.int32), feeds["past_lens.packed"], feeds["block_tables"])
        actual = _core.step(executor, *step, feeds["logits_indices"])
        (expected,) = state.step([network(variant)], lens, feeds)
        if variant == "bfloat16" == product_dtype(_testing.supported_isas()[0]):
            assert_close(actual, expected, "bfloat16", table=ROUNDED_TOLERANCES)
        else:
            np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize("gather_context_logits", [False, True])
def test_memory_of_the_runtime(gather_context_logits: bool, tmp_path: Path) -> None:
    limits = {**LIMITS, "gather_context_logits": gather_context_logits}
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "mistral")
    build_engine(checkpoint, tmp_path / "engine", **limits)
    engine = _core.Engine(str(tmp_path / "engine" / "rank0.engine"))
    for num_threads in (1, 2, None):
        predicted = plan_memory(checkpoint, **limits, num_threads=num_threads)
        used = _core.CpuExecutor(engine, num_threads=num_threads or 0).memory
        assert {kind: predicted.to_dict()[kind] for kind in used} == pytest.approx(used, rel=0.05)
