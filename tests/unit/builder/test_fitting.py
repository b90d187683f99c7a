"""Limits that the user did not give shrink until a sequence of full length fits into a card; given limits stay."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.builder.checkpoints import save_checkpoint
from tests.unit.builder.cuda_engines import cuda_shape
from trtllm_lite.builder import BuildLimits, choose_limits, open_checkpoint, plan_memory
from trtllm_lite.builder.fitting import cache_room
from trtllm_lite.builder.memory import MemoryPlan
from trtllm_lite.cli import cli
from trtllm_lite.common.vocabulary import GPU_MEMORY_FRACTION
from trtllm_lite.errors import BuildError

GPU = {"target": "sm_90", "tokens_per_block": 16}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("fitting") / "checkpoint", cuda_shape())


def _memory(checkpoint: Path, **limits: Any) -> MemoryPlan:
    return plan_memory(checkpoint, **{**GPU, **limits})


def _card(memory: MemoryPlan, cache: int) -> int:
    """The memory of a card that has room for a KV cache of this many bytes."""
    wanted = memory.weights + memory.workspace + cache
    return next(size for size in range(int(wanted / GPU_MEMORY_FRACTION), 1 << 40) if cache_room(memory, size) >= cache)


def _chosen(checkpoint: Path, device_memory: int, **given: Any) -> BuildLimits:
    return choose_limits(open_checkpoint(checkpoint), device_memory, **GPU, **given)


def test_a_card_with_room_changes_nothing(checkpoint: Path) -> None:
    memory = _memory(checkpoint)
    assert _chosen(checkpoint, _card(memory, memory.cache_use.num_bytes)) == choose_limits(
        open_checkpoint(checkpoint), **GPU
    )


def test_steps_shrink_before_sequences(checkpoint: Path) -> None:
    memory = _memory(checkpoint)
    chosen = _chosen(checkpoint, _card(memory, memory.cache_use.num_bytes) - 1)
    assert (chosen.max_batch_size, chosen.num_tokens) == (128, 4096)  # half of the defaults
    assert chosen.max_seq_len == 64


def test_the_batch_holds_the_widest_search(checkpoint: Path) -> None:
    smallest = _memory(checkpoint, max_batch_size=12, max_num_tokens=128)
    card = _card(smallest, 2 * smallest.cache_use.block_bytes)  # even a smaller batch would leave no room
    chosen = _chosen(checkpoint, card, max_beam_width=12, max_num_tokens=128)
    assert (chosen.max_batch_size, chosen.max_seq_len) == (12, 32)


def test_the_longest_sequence_is_what_the_cache_holds(checkpoint: Path) -> None:
    smallest = _memory(checkpoint, max_batch_size=8, max_num_tokens=128)
    block = smallest.cache_use.block_bytes
    chosen = _chosen(checkpoint, _card(smallest, 2 * block), max_num_tokens=128)
    assert (chosen.max_batch_size, chosen.max_seq_len, chosen.max_input_len) == (8, 32, 32)


def test_what_is_given_stays(checkpoint: Path) -> None:
    given = {"max_batch_size": 100, "max_num_tokens": 200, "max_seq_len": 48}
    memory = _memory(checkpoint, **given)
    chosen = _chosen(checkpoint, _card(memory, memory.cache_use.block_bytes), **given)
    assert {name: getattr(chosen, name) for name in given} == given


def test_no_room_is_an_error_that_names_both(checkpoint: Path) -> None:
    smallest = _memory(checkpoint, max_batch_size=8, max_num_tokens=128)
    with pytest.raises(BuildError, match=r"weights of .* and a workspace of .* in 90% of .*: build with a --qformat"):
        _chosen(checkpoint, _card(smallest, 0), max_num_tokens=128)


@pytest.mark.usefixtures("no_machine_code")
def test_an_engine_is_built_for_what_fits(checkpoint: Path, tmp_path: Path) -> None:
    smallest = _memory(checkpoint, max_batch_size=8, max_num_tokens=128)
    card = _card(smallest, 2 * smallest.cache_use.block_bytes)
    limits = ["--target", "sm_90", "--tokens_per_block", "16", "--max_num_tokens", "128", "--device_memory", str(card)]
    paths = ["--checkpoint_dir", str(checkpoint), "--output_dir", str(tmp_path / "engine")]
    built = CliRunner().invoke(cli, ["build", *paths, *limits])
    assert built.exit_code == 0, built.output
    assert "limits: max_batch_size 8, max_input_len 32, max_seq_len 32, max_num_tokens 128" in built.stdout
    assert "note: the model takes up to 64 tokens, and max_seq_len is what memory holds" in built.stdout


def test_cpus_have_no_such_memory(checkpoint: Path) -> None:
    assert choose_limits(open_checkpoint(checkpoint), 1) == choose_limits(open_checkpoint(checkpoint))
