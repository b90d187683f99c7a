"""CPU engines with recurrent layers on several ranks, against transformers: any cut into steps, reuse, preemption."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_recurrent_engine import CHUNKS, WIDE_STATES, Case, check_preemption
from tests.e2e.test_tensor_parallel import LIMITS as SMALL_LIMITS
from tests.e2e.test_tensor_parallel import checkpoint_of
from tests.fuzz.engines import taken_apart
from tests.models import HYBRID_FAMILIES
from tests.rounds import in_turn
from trtllm_lite import _core
from trtllm_lite._core import Engine
from trtllm_lite.builder import build_engine, plan_memory
from trtllm_lite.common.vocabulary import STATE
from trtllm_lite.engine.manifest import CacheGroup
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import BuildError, EngineError
from trtllm_lite.plugins.replay import REPLAYED, ReplayState

RANKS: tuple[dict[str, Any], ...] = ({"tp_size": 2}, {"pp_size": 2}, {"tp_size": 2, "pp_size": 2})
OF_THREE_LAYERS: dict[str, Any] = {"pp_size": 3}  # of qwen3_next: two stages keep states alone, one keys and values


@pytest.fixture(scope="module", params=in_turn(HYBRID_FAMILIES, RANKS), ids=str)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, ranks = request.param
    return Case(family, tmp_path_factory.mktemp(family), **ranks)


def test_tokens_equal_transformers_and_states_are_reused(case: Case) -> None:
    runner = case.runner()
    case.check(runner)
    before = runner.session.stats()
    case.check(runner)  # all but the last block of each prompt is known, with its state
    assert runner.session.stats().prefix_hit_rate > before.prefix_hit_rate


@pytest.mark.each_value
@pytest.mark.parametrize("max_num_tokens", CHUNKS[:2])
def test_prompts_in_chunks_lead_to_the_same_tokens(case: Case, max_num_tokens: int) -> None:
    case.check(case.runner(max_num_tokens=max_num_tokens))


@pytest.mark.each_value
@pytest.mark.parametrize("host_cache_size", [0, 1 << 26])
def test_preempted_sequences_go_on_from_their_states(case: Case, host_cache_size: int) -> None:
    check_preemption(case, host_cache_size)


@pytest.mark.parametrize("host_cache_size", [0, 1 << 26])
def test_a_stage_may_keep_states_alone_or_keys_and_values_alone(host_cache_size: int, tmp_path: Path) -> None:
    case = Case("qwen3_next", tmp_path, **OF_THREE_LAYERS)
    case.check(case.runner())
    check_preemption(case, host_cache_size)


def groups_of(directory: Path) -> list[tuple[CacheGroup, ...]]:
    names = read_engine(directory).manifest.engine_files
    return [read_engine(directory / name).manifest.kv_cache.groups for name in names]


def test_states_take_equally_many_blocks_in_all_stages(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("qwen3_next", tmp_path, **WIDE_STATES["qwen3_next"])
    build_engine(checkpoint, tmp_path / "engine", **OF_THREE_LAYERS, **SMALL_LIMITS)
    stages = groups_of(tmp_path / "engine")
    assert [[group.layers for group in groups] for groups in stages] == [[(), (0,)], [(), (1,)], [(2,), ()]]
    caches = [
        read_engine(tmp_path / "engine" / f"rank{number}.engine").manifest.kv_cache for number in range(len(stages))
    ]
    (blocks,) = {group.blocks for groups in stages for group in groups if group.kind == STATE}
    attention = caches[-1].bytes_per_block
    of_layer = sum(cache.num_bytes for cache in stages[0][1].caches)
    assert blocks == -(-of_layer // attention)
    assert [cache.token_bytes for cache in caches] == [0, 0, attention // SMALL_LIMITS["tokens_per_block"]]
    for cache in caches[:-1]:
        assert of_layer <= blocks * cache.bytes_per_block < of_layer + 64 * blocks
    assert len({cache.num_blocks for cache in caches}) == 1
    described = plan_memory(checkpoint, **OF_THREE_LAYERS, **SMALL_LIMITS).cache_use.groups
    assert all(group.describe() for group in described)


def test_stages_whose_states_do_not_fit_or_lie_elsewhere_are_refused(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("qwen3_next", tmp_path, **WIDE_STATES["qwen3_next"])
    build_engine(checkpoint, tmp_path / "engine", **OF_THREE_LAYERS, **SMALL_LIMITS)
    paths = [tmp_path / "engine" / f"rank{number}.engine" for number in range(3)]
    blocks, changed = groups_of(tmp_path / "engine")[0][1].blocks, tmp_path / "changed.engine"
    engine = taken_apart(paths[0].read_bytes())
    engine.manifest["kv_cache"]["groups"][1]["blocks"] = blocks - 1
    changed.write_bytes(engine.to_bytes())
    with pytest.raises(EngineError, match=f"expected states in {blocks - 1} blocks"):
        Engine(str(changed))
    engine.manifest["kv_cache"]["groups"][1]["blocks"] = blocks + 1
    changed.write_bytes(engine.to_bytes())
    with pytest.raises(EngineError, match="stage 1 does not take what the previous stage sends"):
        _core.open_executor([Engine(str(path)) for path in (changed, *paths[1:])])


def test_ranks_keep_the_states_of_their_heads(tmp_path: Path) -> None:
    build_engine(checkpoint_of("qwen3_next", tmp_path), tmp_path / "engine", tp_size=6, **SMALL_LIMITS)
    alike = groups_of(tmp_path / "engine")
    assert all(groups == alike[0] for groups in alike)
    shapes = {cache.name: cache.shape for cache in alike[0][-1].caches}
    # Each of 2 key heads serves three ranks, and each rank has one of 6 value heads.
    assert shapes == {"conv_state": (4, 10 + 10 + 14), "recurrent_state": (1, ReplayState(10, 14, 1, REPLAYED, 1).size)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"tp_size": 4},
            r"tp_size is 4, and layers\.0\.recurrent\.rule cannot .*: its 6 value heads cannot be split evenly; pass a "
            "--tp_size of 1 or 2 or 6",
        ),
        ({"tp_size": 3}, "its 2 key heads cannot be split or repeated evenly; pass a --tp_size of 1 or 2 or 6"),
        (
            {"pp_size": 4},
            r"at most 3 stages with attention or states, behind layers\.0\.\S+, .*: pass --pp_size 3 or less",
        ),
        ({"tp_size": 2, "max_lora_rank": 8}, "tp_size is 2: adapters"),
    ],
    ids=str,
)
def test_what_cannot_be_divided_is_refused(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=message):
        build_engine(checkpoint_of("qwen3_next", tmp_path), tmp_path / "engine", **given, **SMALL_LIMITS)
    assert not (tmp_path / "engine").exists()
