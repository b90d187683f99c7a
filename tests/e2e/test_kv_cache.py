"""8-bit KV caches on tiny models: calibrated scales, the network's rounding, and engines that store the same."""

from dataclasses import replace
from math import e, log2
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from click.testing import CliRunner, Result
from transformers import DynamicCache

from tests.e2e.test_quantize import TEXT, converted, feeds_of, logits, settings
from tests.models import save_tiny_model, tiny_tokenizer
from trtllm_lite.builder import BuildLimits, build_engine, open_checkpoint, plan_memory
from trtllm_lite.builder.cache_groups import assign_cache_groups
from trtllm_lite.builder.cuda.planning import lower_network
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.cli import cli
from trtllm_lite.common.vocabulary import DECODER, KV_CACHE_DTYPES
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.launch import Launch
from trtllm_lite.quantize.calibration.statistics import Statistics
from trtllm_lite.quantize.kv_cache import find_attentions, kv_cache_dtype_of
from trtllm_lite.quantize.network import Recipe, quantize_network
from trtllm_lite.runtime.sequence_runner import SequenceRunner
from trtllm_lite.workflows.quantize import quantize_checkpoint, uncalibrated

STORES = ("rope_cache", "qkv_linear", "qkv_linear_tiled")  # kernels that write keys and values
LIMITS = {"max_batch_size": 1, "max_seq_len": 64, "gather_context_logits": True}
SIZES_OF_GPUS = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
}


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2"])
def test_engines_store_what_the_network_says(family: str, dtype: str, tmp_path: Path) -> None:
    """The engine's logits are onnxruntime's for the quantized network, and do not depend on how a prompt is chunked."""
    original = open_checkpoint(converted(tmp_path, family))
    recipe = Recipe(kv_cache_dtype=dtype)
    quantize_checkpoint(tmp_path / "checkpoint", tmp_path / "quantized", recipe, settings(tmp_path), lambda *_: None)
    quantized = open_checkpoint(tmp_path / "quantized")
    assert kv_cache_dtype_of(quantized.model.graph) == dtype
    feeds = feeds_of(original)
    before, after = logits(original.model, feeds), logits(quantized.model, feeds)
    manifest = build_engine(tmp_path / "quantized", tmp_path / "engine", **LIMITS)
    assert manifest.kv_cache.dtype == KV_CACHE_DTYPES[dtype]
    assert manifest.qformat == "full_prec"
    assert plan_memory(original, **LIMITS).kv_cache == 4 * plan_memory(quantized, **LIMITS).kv_cache
    runner = SequenceRunner(tmp_path / "engine")
    tokens = feeds["input_ids"].astype(np.int32)
    parts, whole = (np.stack([np.concatenate(list(runner.logits(row, n))) for row in tokens]) for n in (7, 20))
    np.testing.assert_array_equal(parts, whole)
    # Another order of summation occasionally rounds a key to the next number.
    assert np.std(whole - after) < 0.1 * np.std(before - after)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_scales_are_those_of_what_transformers_caches(family: str, tmp_path: Path) -> None:
    """The scales follow from the largest key and value of each layer over the text, also in layers with a window."""
    model = save_tiny_model(family, tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    out = tmp_path / "quantized"
    quantize_checkpoint(tmp_path / "checkpoint", out, Recipe(kv_cache_dtype="fp8"), settings(tmp_path), lambda *_: None)
    ids, caches = tiny_tokenizer().encode(TEXT).ids, []
    for first in range(0, len(ids), 48):
        caches.append(DynamicCache())  # a cache of full length in every layer
        with torch.inference_mode():
            model(torch.tensor([ids[first : first + 48]]), past_key_values=caches[-1], use_cache=True)
    for layer, attention in enumerate(find_attentions(open_checkpoint(out).model.graph)):
        for rounding, what in zip(attention.roundings, ("keys", "values"), strict=True):
            largest = max(float(getattr(cache.layers[layer], what).abs().max()) for cache in caches)
            assert rounding is not None
            assert rounding.scale * 448 == pytest.approx(largest, rel=1e-4)


def test_scales_are_those_of_values_that_smoothing_divides(tmp_path: Path) -> None:
    """The scales follow from the largest value of the network with quantized products, whose rounding changes it."""
    original = open_checkpoint(converted(tmp_path))
    found = {}
    for cache in (None, "fp8"):
        recipe, out = Recipe("int8_sq", kv_cache_dtype=cache), tmp_path / str(cache)
        quantize_checkpoint(tmp_path / "checkpoint", out, recipe, settings(tmp_path), lambda *_: None)
        found[cache] = open_checkpoint(out).model
    session = onnxruntime.InferenceSession(ir.to_proto(found[None]).SerializeToString())
    tokens = np.array(tiny_tokenizer().encode(TEXT).ids)
    tokens = tokens[: len(tokens) // 48 * 48].reshape(-1, 48)
    feeds = {name: np.zeros((len(tokens), *value.shape[1:]), value.dtype) for name, value in feeds_of(original).items()}
    feeds |= {"input_ids": tokens, "position_ids": np.tile(np.arange(48), (len(tokens), 1))}
    feeds |= {name: value.repeat(2, 2) for name, value in feeds.items() if value.ndim == 4}
    for layer, attention in enumerate(find_attentions(found["fp8"].graph)):
        (values,) = session.run([f"present_value.{layer}"], feeds)
        _, rounding = attention.roundings
        assert rounding is not None
        assert rounding.scale * 448 == pytest.approx(np.abs(values).max(), rel=0.05)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def test_build_quantizes_as_quantize_does(tmp_path: Path) -> None:
    source = ["--checkpoint_dir", converted(tmp_path)]
    cache = ["--kv_cache_dtype", "int8", "--calib_dataset", tmp_path / "text.txt", "--calib_max_seq_length", 48]
    run("quantize", *source, "--output_dir", tmp_path / "quantized", *cache)
    run("build", "--checkpoint_dir", tmp_path / "quantized", "--output_dir", tmp_path / "two_steps")
    run("build", *source, "--output_dir", tmp_path / "one_step", *cache)
    one, two = (tmp_path / name / "rank0.engine" for name in ("one_step", "two_steps"))
    assert one.read_bytes() == two.read_bytes()
    run("plan", *source, "--kv_cache_dtype", "fp8")
    both = ["--qformat", "int8_wo", "--kv_cache_dtype", "fp8", "--kv_cache_scale", 1]
    assert "int8_wo,kv_cache_fp8" in run("quantize", *source, "--output_dir", tmp_path / "fixed", *both).stdout
    for attention in find_attentions(open_checkpoint(tmp_path / "fixed").model.graph):
        assert [rounding and rounding.scale for rounding in attention.roundings] == [1, 1]


def test_a_cache_that_is_rounded_already_is_not_copied(tmp_path: Path) -> None:
    source, rounded = converted(tmp_path), tmp_path / "rounded"
    cache = ["--kv_cache_dtype", "int8"]
    run("quantize", "--checkpoint_dir", source, "--output_dir", rounded, *cache, "--kv_cache_scale", 1)
    again = ["quantize", "--checkpoint_dir", rounded, "--output_dir", tmp_path / "again", *cache]
    result = CliRunner().invoke(cli, [str(word) for word in again])
    assert "stores keys and values as int8 already, and nothing else is to be quantized: build it" in result.stderr
    assert not (tmp_path / "again").exists()
    assert "int8_wo" in run(*again, "--qformat", "int8_wo").stdout
    run("build", "--checkpoint_dir", rounded, "--output_dir", tmp_path / "engine", *cache)


def test_what_cannot_be(tmp_path: Path) -> None:
    """A scale of 1 must be given explicitly, a network is rounded once, and only sm_90 GPUs read 8-bit caches."""
    checkpoint = open_checkpoint(converted(tmp_path, dtype="bfloat16", **SIZES_OF_GPUS))
    engine = tmp_path / "engine"
    with pytest.raises(BuildError, match=r"layers.0.attention.attention is to be quantized .* needs calibration"):
        build_engine(checkpoint, engine, kv_cache_dtype="fp8")
    with pytest.raises(BuildError, match="kv_cache_scale is 1, and keys and values are not rounded: pass kv_cache"):
        build_engine(checkpoint, engine, kv_cache_scale=1)
    for scale in (float("inf"), float("nan"), 1e-60, 1e60):
        with pytest.raises(BuildError, match=r"kv_cache_scale is \S+: expected a number above 0 that float32"):
            build_engine(checkpoint, engine, kv_cache_dtype="int8", kv_cache_scale=scale)
    with pytest.raises(BuildError, match="kv_cache_dtype is 'fp4': expected fp8 or int8"):
        Recipe(kv_cache_dtype="fp4")
    rounded = uncalibrated(checkpoint, Recipe(kv_cache_dtype="int8"))
    with pytest.raises(BuildError, match=r"layers.0.attention.attention stores rounded keys or values already"):
        plan_memory(rounded, kv_cache_dtype="fp8")
    with pytest.raises(BuildError, match=r"is to be 'float32', and the GPU kernels keep .* --kv_cache_dtype bfloat16,"):
        plan_memory(checkpoint, target="sm_90", kv_cache_dtype="float32")
    for name in KV_CACHE_DTYPES:
        with pytest.raises(BuildError, match="for sm_90a: build for another target, or with a --kv_cache_dtype of 16"):
            plan_memory(checkpoint, target="sm_80", kv_cache_dtype=name)
    assert plan_memory(rounded, target="sm_80", kv_cache_dtype="bfloat16").kv_cache > 0
    assert plan_memory(rounded, kv_cache_dtype="int8").kv_cache == plan_memory(rounded).kv_cache


def test_a_plain_type_by_name_leaves_keys_and_values_as_they_are(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(converted(tmp_path))
    rounded, _ = quantize_network(checkpoint.model, Recipe(kv_cache_dtype="int8", kv_cache_scale=0.5))
    for name, network in (("plain", checkpoint.model), ("rounded", rounded)):
        manifest = build_engine(replace(checkpoint, model=network), tmp_path / name, kv_cache_dtype="float16", **LIMITS)
        assert manifest.kv_cache.dtype == "float16"
    tokens = feeds_of(checkpoint)["input_ids"].astype(np.int32)[0]
    plain, of_rounded = (
        np.concatenate(list(SequenceRunner(tmp_path / name).logits(tokens, 20))) for name in ("plain", "rounded")
    )
    np.testing.assert_array_equal(of_rounded, plain)
    assert kv_cache_dtype_of(rounded.graph) == "int8"


def test_the_same_types_for_all_layers(tmp_path: Path) -> None:
    checkpoint = uncalibrated(open_checkpoint(converted(tmp_path)), Recipe(kv_cache_dtype="fp8"))
    attention = find_attentions(checkpoint.model.graph)[1]
    for scatter, rounding in zip(attention.scatters, attention.roundings, strict=True):
        assert rounding is not None
        scatter.replace_input_with(1, rounding.source)
    message = r"layers.0.attention.attention as float8_e4m3fn, layers.1.\S+ as float32: a KV cache has the same types"
    with pytest.raises(BuildError, match=message):
        plan_memory(checkpoint)


def test_keys_that_are_zero_have_no_scale(tmp_path: Path) -> None:
    network = open_checkpoint(converted(tmp_path)).model

    def statistics(name: str) -> Statistics:
        del name
        keys = find_attentions(network.graph)[0].num_features
        largest = np.repeat(np.array([0, 1], np.float32), keys)
        return Statistics(largest, largest, largest[None])

    with pytest.raises(BuildError, match=r"layers.0.attention.attention: its keys or its values are zero throughout"):
        quantize_network(network, Recipe(kv_cache_dtype="fp8"), statistics)


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
def test_kernels_of_gpus_have_the_type_and_the_scales_of_their_layer(dtype: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(converted(tmp_path, dtype="bfloat16", **SIZES_OF_GPUS))
    last, row_type = {"fp8": (448.0, 1), "int8": (127.0, 2)}[dtype]
    largest = {attention.name: last * (1 + i) for i, attention in enumerate(find_attentions(checkpoint.model.graph))}

    def statistics(name: str) -> Statistics:
        magnitudes = np.array([largest[name]] * 64 + [largest[name] / 2] * 64, np.float32)
        return Statistics(magnitudes, magnitudes, magnitudes[None])

    network, _ = quantize_network(checkpoint.model, Recipe(kv_cache_dtype=dtype), statistics)
    model, _ = run_passes(network)
    limits = BuildLimits.for_model(checkpoint.config.max_position_embeddings, **LIMITS)
    limits = replace(limits, cache_groups=assign_cache_groups(model.graph, limits.max_seq_len))
    lowered = lower_network(model.graph, DECODER, "bfloat16", limits, parse_targets(["sm_90"]))
    for program in lowered.programs:
        launches = [command for command in program.commands if isinstance(command, Launch)]
        types = [dict(command.kernel.defines).get("TL_CACHE_TYPE") for command in launches]
        assert set(types) == {None, row_type}
        attends = [command.arguments for command in launches if command.kernel.name == "paged_attention_decode"]
        stores = [command.arguments for command in launches if command.kernel.name in STORES]
        scales = [1 + i for i in range(len(largest))]
        assert [arguments[-2:] for arguments in stores] == [(1 / scale, 2 / scale) for scale in scales]
        assert [arguments[-2] for arguments in attends] == [scale / 2 for scale in scales]
        assert [arguments[-1] for arguments in attends] == pytest.approx([scale / 8 * log2(e) for scale in scales])
