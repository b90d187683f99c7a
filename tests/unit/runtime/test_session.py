"""Loading: the errors for directories that hold no engine, and how options tighten limits."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from trtllm_lite.common.host_memory import available_host_memory
from trtllm_lite.engine.manifest import Lora, Memory, RankMapping, Target
from trtllm_lite.engine.modules import Module
from trtllm_lite.errors import ArgumentError, EngineError, LimitError
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.session.config import KvCacheConfig, SchedulerConfig
from trtllm_lite.runtime.session.device import adapter_slots, available_memory, device_options
from trtllm_lite.runtime.session.engine_dir import check_adapters, check_end_ids
from trtllm_lite.runtime.session.limits import (
    AdapterSlots,
    RunnerOptions,
    check_host_memory,
    memory_for,
    runner_limits,
)

from .doubles import fake_manifest

CACHE = {field.name for field in fields(KvCacheConfig)}


def limits(available=1 << 40, **options):
    cache = {name: options.pop(name) for name in list(options) if name in CACHE}
    scheduler = SchedulerConfig(capacity_scheduler_policy=options.pop("policy", "MAX_UTILIZATION"))
    run = RunnerOptions(kv_cache=KvCacheConfig(**cache), scheduler=scheduler, **options)
    return runner_limits(fake_manifest(), run, available)


def test_a_directory_that_does_not_exist(tmp_path):
    with pytest.raises(EngineError, match="does not exist"):
        ModelRunner.from_dir(tmp_path / "absent")


def test_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="is a file"):
        ModelRunner.from_dir(tmp_path / "file")


def test_a_checkpoint(tmp_path):
    (tmp_path / "network.onnx").touch()
    with pytest.raises(EngineError, match=r"is a checkpoint.*trtllm-lite build"):
        ModelRunner.from_dir(tmp_path)


def test_another_directory(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(EngineError, match=r"no rank0.engine \(found: notes.txt\)"):
        ModelRunner.from_dir(tmp_path)


def test_another_rank(tmp_path):
    (tmp_path / "rank0.engine").touch()
    with pytest.raises(ArgumentError, match="rank is 1: one process runs all ranks of an engine, so pass rank=0"):
        ModelRunner.from_dir(tmp_path, rank=1)
    with pytest.raises(ArgumentError, match="rank is -1"):
        ModelRunner.from_dir(tmp_path, rank=-1)


def test_an_engine_that_is_no_engine(tmp_path):
    (tmp_path / "rank0.engine").write_bytes(b"\0" * 100)
    with pytest.raises(EngineError):
        ModelRunner.from_dir(tmp_path)


def test_limits_are_those_of_the_engine():
    built = limits()
    assert (built.max_batch_size, built.max_seq_len, built.max_output_len, built.num_blocks) == (4, 40, 40, 40)
    assert built.cache_len == 160
    assert [built.blocks_for(tokens) for tokens in (1, 4, 5)] == [1, 1, 2]


def test_options_lower_them():
    lowered = limits(max_batch_size=2, max_seq_len=20)
    assert (lowered.max_batch_size, lowered.max_output_len, lowered.num_blocks) == (2, 40, 10)
    assert limits(max_tokens=50).num_blocks == 12
    assert limits(max_gpu_total_bytes=256 * 5 + 1).num_blocks == 5
    assert limits(host_cache_size=256 * 7).num_host_blocks == 7


def test_a_share_of_the_free_memory():
    assert limits(available=10_000, free_gpu_memory_fraction=0.5).num_blocks == 5000 // 256
    assert limits(free_gpu_memory_fraction=0.5).num_blocks == 40
    assert available_host_memory() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_size": 5}, r"max_batch_size=5 exceeds what this engine was built for \(4\)"),
        ({"max_output_len": 41}, "--max_seq_len"),
        ({"max_num_tokens": 3}, "less than max_batch_size=4"),
        ({"max_batch_size": 10**5000}, "max_batch_size=<a whole number of"),
        ({"host_cache_size": 10**18}, r"host_cache_size=10{18} exceeds the host's memory of [\d,]+ bytes: lower it"),
        ({"max_tokens": 3}, "no room for one KV cache block of 4 tokens"),
        ({"max_tokens": 3}, "max_tokens=3 leaves no room .*: raise it$"),
        ({"free_gpu_memory_fraction": 0.9, "available": 100}, "0.9 of 100 free bytes .*: free memory on the device"),
    ],
)
def test_options_beyond_the_engine(options, message):
    with pytest.raises(LimitError, match=message):
        limits(**options)


def test_bookkeeping_that_the_host_cannot_hold():
    built = replace(limits(), num_blocks=1 << 26, tokens_per_block=16)
    check_host_memory(built, 1 << 40)
    with pytest.raises(LimitError, match=r"67,108,864 blocks, for max_batch_size 4 .* and 1,000 are free: lower"):
        check_host_memory(built, 1000)


def test_too_little_memory_names_the_limits():
    message = "max_batch_size 4, max_seq_len 40, max_num_tokens 16 and 40 blocks of KV cache: lower one"
    with pytest.raises(LimitError, match=message), memory_for(limits()):
        raise MemoryError


def test_a_gpu_too_small_for_the_engine():
    engine = replace(fake_manifest(), target=Target("cuda", ("sm_90a",)), memory=Memory(1000, 0, 300))
    enough, small = SimpleNamespace(free_memory=1350), SimpleNamespace(free_memory=1299)
    assert available_memory([enough], engine) == 50
    with pytest.raises(LimitError, match=r"needs 1,000 bytes for weights and 300 for .* has 1,299 free: .*--max_num"):
        available_memory([enough, small], engine, others=[engine])
    adapted = replace(engine, lora=Lora(8, (), slot_bytes=10))
    assert available_memory([enough], adapted, num_loras=4) == 50  # adapters share it with the KV cache
    with pytest.raises(LimitError, match=r"slots of 6 adapters take 60 bytes .* 1,350 free: lower max_loras"):
        available_memory([enough], adapted, num_loras=6)


def test_adapters_take_what_the_cache_leaves_and_borrow_the_rest():
    slots = AdapterSlots(4, num_bytes=950, slab_bytes=100)  # ten slabs
    assert slots.share(5000, 3000, 30, 100) == (1000, 0)
    assert slots.share(3650, 3000, 30, 100) == (600, 4)
    assert slots.share(3000, 3000, 30, 100) == (0, 10)
    assert slots.share(3000, 3000, 100, 30) == (0, 10 * 4)  # a slab reaches into four blocks at most
    assert slots.share(20000, 20000, 20, 1000) == (0, 10)  # each slab may break another block
    with pytest.raises(LimitError, match=r"slots of 4 adapters take 950 bytes, and 1,000 bytes .*: lower max_loras"):
        slots.share(1000, 1000, 10, 100)  # the first slab stays
    gpu = SimpleNamespace(cuda_slab_bytes=lambda _: 64)
    engine = replace(fake_manifest(), target=Target("cuda", ("sm_90a",)), lora=Lora(8, (), slot_bytes=10))
    assert adapter_slots(gpu, engine, 4, [1]) == AdapterSlots(4, 40, 64)
    assert adapter_slots(gpu, fake_manifest(), 4, None) == AdapterSlots()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mapping": RankMapping(tp_size=2)}, r"one of 2 ranks \(--tp_size, --pp_size\).* without --max_lora_rank"),
        ({"mapping": RankMapping(pp_size=3)}, "one of 3 ranks"),
        ({"modules": (Module("head", "drafting_head", (), (), ()),)}, "a head or a layer that drafts"),
    ],
)
def test_engines_that_no_adapter_fits_take_none(changes, message):
    check_adapters(replace(fake_manifest(), **changes))
    check_adapters(replace(fake_manifest(), lora=Lora(8, (), slot_bytes=0)))
    with pytest.raises(EngineError, match=message):
        check_adapters(replace(fake_manifest(), lora=Lora(8, (), slot_bytes=0), **changes))


@pytest.mark.parametrize(
    "options",
    [{"max_batch_size": 0}, {"max_input_len": 1.5}, {"max_num_tokens": True}, {"num_threads": 2**31}]
    + [{"free_gpu_memory_fraction": value} for value in (0, 1.1, "half", True)],
)
def test_options_that_make_no_sense(options):
    with pytest.raises(ArgumentError, match=next(iter(options))):
        limits(**options)


def test_host_memory_is_for_prefixes_or_a_policy_that_preempts():
    assert limits(policy="GUARANTEED_NO_EVICT", host_cache_size=0).num_host_blocks == 0
    assert limits(policy="GUARANTEED_NO_EVICT", host_cache_size=256 * 7).num_host_blocks == 7
    with pytest.raises(ArgumentError, match=r"GUARANTEED_NO_EVICT preempts none: set .* to MAX_UTILIZATION, or"):
        limits(policy="GUARANTEED_NO_EVICT", host_cache_size=256 * 7, enable_block_reuse=False)


def test_host_memory_has_room_for_a_block():
    with pytest.raises(LimitError, match=r"host_cache_size=255 is too small: a block .* takes 256 bytes: raise it"):
        limits(host_cache_size=255)


def test_threads_are_for_the_cpu():
    options = RunnerOptions(num_threads=2)
    assert device_options(Target("cpu"), options).num_threads == 2
    with pytest.raises(ArgumentError, match="num_threads is given, and the engine runs on a GPU: leave it out"):
        device_options(Target("cuda", ("sm_90a",)), options)


@pytest.mark.parametrize("token", [2**31, 2**70, -1, 397])
def test_an_engine_whose_end_token_it_has_not(token):
    model = replace(fake_manifest().model, eos_token_ids=[1, token])
    with pytest.raises(EngineError, match=r"end-of-sequence token .* is outside its vocabulary of 397 tokens"):
        check_end_ids(replace(fake_manifest(), model=model))
