"""Engines whose keys keep 16 or 32 bits beside values in 8: the network, calibration, and the order of steps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.e2e.test_beam_search import BLOCK, LIMITS, MAX_TOKENS, Loop
from tests.e2e.test_kv_cache import SIZES_OF_GPUS, run
from tests.e2e.test_pipeline_parallel import steps_of
from tests.e2e.test_quantize import converted, feeds_of, logits, settings
from tests.e2e.test_tensor_parallel import LIMITS as OF_STEPS
from tests.models import VOCAB_SIZE
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine, open_checkpoint, plan_memory
from trtllm_lite.cli import cli
from trtllm_lite.common.vocabulary import KV_CACHE_DTYPES
from trtllm_lite.engine.inspect import inspect_engine
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import ArgumentError, BuildError
from trtllm_lite.llmapi import LLM, KvCacheConfig
from trtllm_lite.quantize.calibration.statistics import Statistics
from trtllm_lite.quantize.kv_cache import find_attentions, kv_cache_dtype_of, with_plain_kv_cache
from trtllm_lite.quantize.network import Recipe, quantize_network
from trtllm_lite.runtime.sequence_runner import SequenceRunner
from trtllm_lite.workflows.quantize import quantize_checkpoint, uncalibrated

ENGINE = {"max_batch_size": 1, "max_seq_len": 64, "gather_context_logits": True}
BITS = {"float32": 32, "float16": 16, "bfloat16": 16, **dict.fromkeys(KV_CACHE_DTYPES.values(), 8)}


def quantized(directory: Path, dtype: str = "fp8", **recipe: Any) -> Path:
    how = Recipe(kv_cache_dtype=dtype, key_cache_dtype="float32", **recipe)
    quantize_checkpoint(directory / "checkpoint", directory / "quantized", how, settings(directory), lambda *_: None)
    return directory / "quantized"


def token_bytes(manifest: Manifest) -> dict[str, int]:
    """The bytes of a token in all layers, by the name of the cache."""
    caches = [cache for group in manifest.kv_cache.groups for cache in group.caches]
    return {name: sum(cache.num_bytes for cache in caches if cache.name == name) for name in {c.name for c in caches}}


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2"])
def test_engines_store_what_the_network_says(family: str, dtype: str, tmp_path: Path) -> None:
    """The engine's logits are onnxruntime's for the quantized network, and do not depend on how a prompt is chunked."""
    original = open_checkpoint(converted(tmp_path, family))
    rounded = open_checkpoint(quantized(tmp_path, dtype))
    assert kv_cache_dtype_of(rounded.model.graph) is None
    assert kv_cache_dtype_of(rounded.model.graph, of_values=True) == dtype
    for attention in find_attentions(rounded.model.graph):
        keys, values = attention.roundings
        assert keys is None
        assert values is not None
    feeds = feeds_of(original)
    before, after = logits(original.model, feeds), logits(rounded.model, feeds)
    manifest = build_engine(tmp_path / "quantized", tmp_path / "engine", **ENGINE)
    assert manifest.kv_cache.dtype == f"float32 and {KV_CACHE_DTYPES[dtype]}"
    runner = SequenceRunner(tmp_path / "engine")
    tokens = feeds["input_ids"].astype(np.int32)
    parts, whole = (np.stack([np.concatenate(list(runner.logits(row, n))) for row in tokens]) for n in (7, 20))
    np.testing.assert_array_equal(parts, whole)
    assert np.std(whole - after) < 0.1 * np.std(before - after)


@pytest.mark.parametrize("keys", ["auto", "float32", "float16", "bfloat16"])
def test_the_bytes_of_each(keys: str, tmp_path: Path) -> None:
    """The manifest, ``plan`` and ``inspect`` say what a token takes, which is what blocks have room for."""
    converted(tmp_path)
    how = {**ENGINE, "key_cache_dtype": keys}
    manifest = build_engine(quantized(tmp_path), tmp_path / "engine", **how)
    found, cache = token_bytes(manifest), manifest.kv_cache
    stored = {"key_cache": BITS["float32" if keys == "auto" else keys], "value_cache": 8}
    assert found["key_cache"] * stored["value_cache"] == found["value_cache"] * stored["key_cache"]
    assert cache.bytes_per_block == cache.tokens_per_block * sum(found.values())
    assert cache.key_dtype == ("float32" if keys == "auto" else keys)
    plan = plan_memory(open_checkpoint(tmp_path / "quantized"), **how)
    assert plan.kv_cache == cache.bytes_per_block * cache.num_blocks
    used = inspect_engine(tmp_path / "engine").cache_use
    assert used is not None
    (group,) = used.groups
    assert group.token_bytes == sum(found.values())
    assert {cache.name: cache.num_bytes for cache in group.caches} == found
    assert group.dtypes == (cache.key_dtype, "float8_e4m3fn")


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
def test_plans_for_gpus(dtype: str, tmp_path: Path) -> None:
    """Keys of 16 bits beside values of 8 take three quarters of what a KV cache of 16 bits takes."""
    checkpoint = open_checkpoint(converted(tmp_path, dtype="bfloat16", **SIZES_OF_GPUS))
    how = {"target": "sm_90", "max_batch_size": 2, "max_seq_len": 64}
    caches = {"kv_cache_dtype": dtype, "kv_cache_scale": 1, "key_cache_dtype": "bfloat16"}
    plain, mixed = plan_memory(checkpoint, **how), plan_memory(checkpoint, **how, **caches)
    assert 4 * mixed.kv_cache == 3 * plain.kv_cache
    assert 4 * mixed.cache_use.num_bytes == 3 * plain.cache_use.num_bytes
    (group,) = mixed.cache_use.groups
    each = {"key_cache": ("bfloat16", 2), "value_cache": (KV_CACHE_DTYPES[dtype], 1)}
    elements = group.token_bytes // 3
    for cache in group.caches:
        stored, item_bytes = each[cache.name]
        assert (cache.dtype, cache.num_bytes) == (stored, item_bytes * elements)
        assert cache.describe() in group.describe()


def test_latents_have_no_keys_of_their_own(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(converted(tmp_path, "deepseek_v3"))
    with pytest.raises(BuildError, match=r"kv_cache_dtype is fp8, and layers\.0\.attention.* keeps a latent cache"):
        plan_memory(checkpoint, kv_cache_dtype="fp8", kv_cache_scale=1, key_cache_dtype="bfloat16")
    with pytest.raises(BuildError, match="key_cache_dtype is bfloat16, and values are not rounded to 8 bits"):
        plan_memory(checkpoint, key_cache_dtype="bfloat16")


def test_scales_of_values_are_those_with_rounded_keys(tmp_path: Path) -> None:
    """Calibration observes the same network, so that values have the same scales."""
    converted(tmp_path)
    both = Recipe(kv_cache_dtype="fp8")
    quantize_checkpoint(tmp_path / "checkpoint", tmp_path / "both", both, settings(tmp_path), lambda *_: None)
    networks = [open_checkpoint(path).model.graph for path in (tmp_path / "both", quantized(tmp_path))]
    for one, other in zip(*map(find_attentions, networks), strict=True):
        assert one.roundings[1] is not None
        assert other.roundings[1] is not None
        assert one.roundings[1].scale == other.roundings[1].scale


def test_keys_that_are_zero_need_no_scale(tmp_path: Path) -> None:
    network = open_checkpoint(converted(tmp_path)).model
    features = find_attentions(network.graph)[0].num_features

    def statistics(keys: float, values: float) -> Statistics:
        largest = np.repeat(np.array([keys, values], np.float32), features)
        return Statistics(largest, largest, largest[None])

    recipe = Recipe(kv_cache_dtype="int8", key_cache_dtype="float16")
    rounded, _ = quantize_network(network, recipe, lambda _: statistics(0, 1))
    scales = [rounding and rounding.scale for one in find_attentions(rounded.graph) for rounding in one.roundings]
    assert scales == [None, pytest.approx(1 / 127)] * (len(scales) // 2)
    with pytest.raises(BuildError, match=r"layers.0.attention.attention: its values are zero throughout"):
        quantize_network(network, recipe, lambda _: statistics(1, 0))


def test_keys_of_a_checkpoint_with_rounded_ones_stay_as_they_are(tmp_path: Path) -> None:
    """A plain type stores keys unrounded, as for the whole KV cache: what a hub's checkpoint says of values stays."""
    checkpoint = open_checkpoint(converted(tmp_path))
    rounded, _ = quantize_network(checkpoint.model, Recipe(kv_cache_dtype="int8", kv_cache_scale=0.02))
    values_alone = with_plain_kv_cache(rounded, of_keys=True)
    assert with_plain_kv_cache(values_alone, of_keys=True) is values_alone
    build_engine(replace(checkpoint, model=rounded), tmp_path / "engine", key_cache_dtype="float32", **ENGINE)
    feeds = feeds_of(checkpoint)
    tokens = feeds["input_ids"].astype(np.int32)[0]
    found = np.concatenate(list(SequenceRunner(tmp_path / "engine").logits(tokens, 20)))
    expected, before = logits(values_alone, feeds)[0], logits(rounded, feeds)[0]
    assert np.std(found - expected) < 0.1 * np.std(before - expected)


def test_build_quantizes_as_quantize_does(tmp_path: Path) -> None:
    source = ["--checkpoint_dir", converted(tmp_path)]
    cache = ["--kv_cache_dtype", "fp8", "--key_cache_dtype", "float32"]
    text = ["--calib_dataset", tmp_path / "text.txt", "--calib_max_seq_length", 48]
    assert "value_cache_fp8" in run("quantize", *source, "--output_dir", tmp_path / "quantized", *cache, *text).stdout
    run("build", "--checkpoint_dir", tmp_path / "quantized", "--output_dir", tmp_path / "two_steps")
    run("build", *source, "--output_dir", tmp_path / "one_step", *cache, *text)
    one, two = (tmp_path / name / "rank0.engine" for name in ("one_step", "two_steps"))
    assert one.read_bytes() == two.read_bytes()
    shown = " ".join(run("inspect", tmp_path / "one_step").stdout.split())
    assert "value_cache float8_e4m3fn (" in shown
    run("plan", *source, *cache)
    again = ["quantize", "--checkpoint_dir", tmp_path / "quantized", "--output_dir", tmp_path / "again", *cache]
    result = CliRunner().invoke(cli, [str(word) for word in again])
    assert "stores values as fp8 already, and nothing else is to be quantized: build it as it is (with" in result.stderr


def test_what_cannot_be(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(converted(tmp_path, dtype="bfloat16", **SIZES_OF_GPUS))
    alone = r"key_cache_dtype is float16, and values are not rounded to 8 bits: .*, so pass kv_cache_dtype fp8 or int8,"
    with pytest.raises(BuildError, match=alone):
        plan_memory(checkpoint, key_cache_dtype="float16")
    with pytest.raises(BuildError, match=alone):
        plan_memory(checkpoint, kv_cache_dtype="bfloat16", key_cache_dtype="float16")
    for of in (Recipe, lambda **given: plan_memory(checkpoint, **given)):
        with pytest.raises(
            BuildError, match="key_cache_dtype is 'int8': expected auto, for the type of values, or one"
        ):
            of(kv_cache_dtype="fp8", key_cache_dtype="int8")
    with pytest.raises(BuildError, match="key_cache_dtype is float16, and values are not rounded: pass kv_cache_dtype"):
        Recipe(key_cache_dtype="float16")
    values = Recipe(kv_cache_dtype="fp8", key_cache_dtype="float16")
    with pytest.raises(BuildError, match="pass key_cache_dtype bfloat16 here, and another to `trtllm-lite build`"):
        quantize_checkpoint(
            tmp_path / "checkpoint", tmp_path / "quantized", values, settings(tmp_path), lambda *_: None
        )
    rounded = uncalibrated(checkpoint, values)
    with pytest.raises(BuildError, match="stores rounded keys or values already: leave kv_cache_dtype out"):
        plan_memory(rounded, kv_cache_dtype="fp8")
    with pytest.raises(
        BuildError, match=r"values are float8_e4m3fn and the kernels .* are for sm_90a: build for another"
    ):
        plan_memory(rounded, target="sm_80")
    with pytest.raises(BuildError, match=r"keys are to be float16, and the GPU kernels .* --key_cache_dtype bfloat16"):
        plan_memory(rounded, target="sm_90", key_cache_dtype="float16")


def test_an_engine_must_agree_with_the_config_of_its_cache(tmp_path: Path) -> None:
    converted(tmp_path)
    build_engine(quantized(tmp_path), tmp_path / "engine", key_cache_dtype="bfloat16", **ENGINE)

    def opened(**given: str) -> None:
        LLM(tmp_path / "engine", kv_cache_config=KvCacheConfig(**given)).shutdown()

    keys, values = {"key_cache_dtype": "bfloat16"}, {"dtype": "fp8"}
    for agreeing in ({}, keys, values, keys | values):
        opened(**agreeing)
    with pytest.raises(ArgumentError, match="'int8', but this engine was built for bfloat16 and float8_e4m3fn"):
        opened(dtype="int8")
    with pytest.raises(ArgumentError, match="key_cache_dtype is 'float16', but this engine keeps keys as bfloat16"):
        opened(key_cache_dtype="float16")


def test_a_model_becomes_an_engine_with_such_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    converted(tmp_path)
    how = KvCacheConfig(dtype="int8", key_cache_dtype="float16")
    LLM(tmp_path / "checkpoint", target="cpu", max_seq_len=64, kv_cache_config=how).shutdown()
    (made,) = (tmp_path / "cache" / "trtllm_lite" / "engines").glob("*/rank0.engine")
    assert read_engine(made.parent).manifest.kv_cache.dtype == "float16 and int8"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an engine of float16 keys and int8 values, and of what it was made of."""
    directory = tmp_path_factory.mktemp("engines")
    converted(directory)
    build = {"tokens_per_block": BLOCK, "gather_context_logits": True, "key_cache_dtype": "float16", **LIMITS}
    build_engine(quantized(directory, "int8"), directory / "engine", **build)
    return directory


def prompts() -> list[list[int]]:
    """Prompts of which some begin alike."""
    random = np.random.default_rng(3)
    common = random.integers(3, VOCAB_SIZE, 2 * BLOCK + 3).tolist()
    own = [random.integers(3, VOCAB_SIZE, random.integers(1, 29)).tolist() for _ in range(12)]
    return [common[: number % 3 * BLOCK] + rest for number, rest in enumerate(own)]


def tokens_of(loop: Loop) -> list[list[int]]:
    requests = [loop.submit(prompt) for prompt in prompts()]
    outcomes = loop.finish()
    return [outcomes[request].tokens for request in requests]


@pytest.mark.parametrize("num_host_blocks", [0, 24])
def test_preempted_and_swapped_requests_change_nothing(engine: Path, num_host_blocks: int) -> None:
    """Prefixes are found again, and blocks are copied to host memory and back."""
    expected = tokens_of(Loop(engine / "engine"))
    assert {len(tokens) for tokens in expected} == {MAX_TOKENS}
    options = {"max_utilization": True, "enable_block_reuse": True, "num_host_blocks": num_host_blocks}
    scarce = Loop(engine / "engine", num_blocks=8, **options)
    assert tokens_of(scarce) == expected
    stats = scarce.loop.stats()
    assert stats["hit_tokens"] > 0
    assert (stats["num_swap_preemptions"] > 0) == (num_host_blocks > 0)
    assert stats["num_recompute_preemptions"] + stats["num_swap_preemptions"] > 0


@pytest.mark.parametrize("divided", [{"pp_size": 2}, {"tp_size": 2}], ids=str)
def test_stages_and_ranks_compute_what_one_engine_does(engine: Path, divided: dict[str, int], tmp_path: Path) -> None:
    build_engine(engine / "quantized", tmp_path / "one", **OF_STEPS)
    manifest = build_engine(engine / "quantized", tmp_path / "many", **divided, **OF_STEPS)
    assert manifest.kv_cache.dtype == "float32 and int8"
    for expected, found in zip(steps_of(tmp_path / "one"), steps_of(tmp_path / "many"), strict=True):
        assert_close(found, expected)
