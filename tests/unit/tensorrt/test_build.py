"""Engines of TensorRT for RTX, built for two architectures without a GPU: what they contain, and what is refused."""

import faulthandler
import os
import signal
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from tests.models import NETWORK_FAMILIES
from tests.unit.quantize.made_up import made_up
from tests.unit.tensorrt.shapes import ARCHS, LIMITS, rewritten, save_checkpoint
from trtllm_lite import _core
from trtllm_lite.builder import build_engine, plan_memory
from trtllm_lite.builder.tensorrt import compile as compiler
from trtllm_lite.builder.tensorrt.apart import compile_apart
from trtllm_lite.builder.tensorrt.compile import KV_LENGTHS, Compiled, compile_network, parse_network
from trtllm_lite.builder.tensorrt.library import Library, find_library
from trtllm_lite.builder.tensorrt.log import Log
from trtllm_lite.engine.difference import compare_paths
from trtllm_lite.engine.inspect import inspect_path
from trtllm_lite.engine.page import render_page
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import BuildError
from trtllm_lite.quantize.network import Recipe, quantize_network

_BUILD: dict[str, Any] = {
    **{"backend": "tensorrt", "target": ARCHS},
    **{"max_batch_size": 3, "max_input_len": 32, "max_seq_len": 64},
}


def _ignore(done: int, total: int) -> None:
    del done, total


def _compiled(model: ir.Model, dtype: str, archs: Sequence[str] = ARCHS) -> Compiled:
    graph = rewritten(model, dtype)[0].graph
    return compile_apart(partial(compile_network, graph, LIMITS, archs, find_library()), _ignore)


def _sites(compiled: Compiled, phase: str) -> str:
    return " ".join(layer.site for layer in compiled.layers if layer.site.startswith(f"{phase}: "))


@pytest.mark.parametrize("family", NETWORK_FAMILIES)
def test_every_family_builds_with_the_layers_it_should_have(family: str, tmp_path: Path) -> None:
    compiled = _compiled(save_checkpoint(tmp_path, family, "bfloat16").model, "bfloat16")
    kernels = Counter(layer.choice.partition(" ")[0] for layer in compiled.layers)
    assert kernels["attention"] == (0 if family == "gemma2" else 4)  # 2 layers in 2 profiles; soft caps have no kernel
    for phase in ("context", "generation"):
        sites = _sites(compiled, phase)
        for node in ("layers.1.attention.k_cache", "layers.1.attention.v_cache", "layers.1.attention.o_proj"):
            assert node in sites, (phase, node)
        assert ("layers.0.attention.q_rope" in sites) == (family != "gpt2")


@pytest.mark.parametrize(
    ("qformat", "kernel"),
    [
        ("int4_wo", "Int4"),
        ("int4_awq", "Int4"),
        ("int8_sq", "Int8"),
        ("fp8", "FP8"),
        ("fp8_rowwise", "FP8"),
        ("fp8_gptq", "FP8"),
    ],
)
def test_quantized_products_run_in_their_type(qformat: str, kernel: str, tmp_path: Path) -> None:
    model = save_checkpoint(tmp_path, "llama", "float16").model
    quantized, _ = quantize_network(model, Recipe(qformat, group_size=32), made_up(model))
    compiled = _compiled(quantized, "float16")
    narrow = " ".join(layer.site for layer in compiled.layers if kernel in layer.choice)
    for product in ("q_proj", "o_proj", "gate_proj", "down_proj"):
        assert product in narrow


def test_attentions_read_the_lengths_of_their_sequences(tmp_path: Path) -> None:
    """The parser drops the lengths, and masks causally from the first key on."""
    model = rewritten(save_checkpoint(tmp_path, "gemma3", "bfloat16").model, "bfloat16")[0]
    library = find_library()
    trt = library.module
    builder = trt.Builder(Log().logger(trt))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    kept = parse_network(library, network, Log(), model.graph, _ignore)
    layers = [network.get_layer(number) for number in range(network.num_layers)]
    inputs = [layer for layer in layers if layer.type == trt.LayerType.ATTENTION_INPUT]
    for layer in inputs:
        layer.__class__ = trt.IAttentionInputLayer
    assert [layer.attention.key_value_lengths for layer in inputs] == [None, None]
    compiler.set_lengths(trt, network)
    layers = [network.get_layer(number) for number in range(network.num_layers)]
    lengths = next(layer for layer in layers if layer.name == KV_LENGTHS)
    assert lengths.get_input(0).name == "nonpad"
    for layer in inputs:
        assert layer.attention.key_value_lengths.name == lengths.get_output(0).name
    windowed, full = (layer.attention for layer in inputs)
    assert windowed.mask is not None
    assert full.causal_kind == trt.CausalMaskKind.LOWER_RIGHT
    assert kept


def test_an_engine_says_what_it_is(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama", "bfloat16")
    manifest = build_engine(checkpoint, tmp_path / "engine", **_BUILD)
    assert build_engine(checkpoint, tmp_path / "again", **_BUILD) == manifest
    assert read_engine(tmp_path / "again").plan == read_engine(tmp_path / "engine").plan
    assert manifest.target.kind == "tensorrt"
    assert manifest.target.archs == ARCHS
    cache = manifest.kv_cache
    assert (cache.tokens_per_block, cache.num_blocks, cache.dtype) == (64, 3, "bfloat16")
    assert cache.bytes_per_block == 2 * 2 * 2 * 64 * 32 * 2  # keys and values of 2 layers, 2 heads, 64 tokens of 32
    assert manifest.memory.workspace > 0
    context, generation = read_engine(tmp_path / "engine").plan.programs
    assert (context.max_tokens, generation.max_tokens, generation.decode_only) == (64, 3, True)
    inspection = inspect_path(tmp_path / "engine")
    assert inspection.target.startswith("sm_89 sm_120, by TensorRT (execution has not been verified on RTX hardware")
    assert any(tactic.choice.startswith("attention") for tactic in inspection.tactics)
    page = render_page(inspection)
    assert "tensorrt_rtx" in page
    assert "layers.1.attention.k_cache" in page
    changed = compare_paths(tmp_path / "engine", tmp_path / "again").differences
    assert {difference.name for difference in changed} <= {"network.tensorrt"}
    assert _core.Engine(str(tmp_path / "engine" / "rank0.engine"))


def test_weights_that_tensorrt_does_not_multiply_are_named(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama", "bfloat16")
    manifest = build_engine(checkpoint, tmp_path / "engine", qformat="int8_wo", **_BUILD)
    assert {expansion.choice for expansion in manifest.expansions} == {"int8 becomes bfloat16"}
    assert len(manifest.expansions) == 14


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "sm_90"}, "sm_90: TensorRT for RTX builds for .*sm_120.*leave backend out"),
        ({"target": "cpu"}, "the target of the backend tensorrt is cpu"),
        ({"backend": "onnxruntime"}, "the backend is 'onnxruntime': expected native or tensorrt"),
        ({"strip_plan": True}, "strip_plan is given for the backend tensorrt"),
        ({"fast_build": True}, "fast_build is given for the backend tensorrt"),
        ({"tokens_per_block": 64}, "tokens_per_block is 64: TensorRT keeps each sequence in one piece"),
        ({"kv_cache_dtype": "fp8", "kv_cache_scale": 0.1}, "TensorRT keeps keys and values in 16 bits"),
        ({"kv_cache_dtype": "float16"}, "build with --kv_cache_dtype bfloat16"),
    ],
)
def test_what_tensorrt_cannot_do_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama", "bfloat16")
    with pytest.raises(BuildError, match=message):
        build_engine(checkpoint, tmp_path / "engine", **{**_BUILD, **changes})
    assert not (tmp_path / "engine").exists()


def test_matrices_of_float32_are_refused(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama", "float32")
    with pytest.raises(BuildError, match=r"the checkpoint is float32.*--dtype bfloat16"):
        build_engine(checkpoint, tmp_path / "engine", **_BUILD)


def test_plan_says_what_is_known_before_a_build(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama", "bfloat16")
    with pytest.raises(BuildError, match=r"weights take .* bytes and the KV cache 98,304"):
        plan_memory(checkpoint, **_BUILD)


def test_a_compiler_that_crashes_is_an_error() -> None:
    def crash(progress: Any) -> Compiled:
        progress(1, 2)
        faulthandler.disable()  # pytest's would print this crash, which is wanted, among the suite's results
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError

    done: list[tuple[int, int]] = []
    with pytest.raises(BuildError, match="TensorRT's compiler ended with exit code -11"):
        compile_apart(crash, lambda *step: done.append(step))
    assert done == [(1, 2)]


def test_a_line_that_is_not_known_fails_the_build() -> None:
    log = Log([("VERBOSE", "anything"), ("INFO", "Total Activation Memory: 12 bytes")])
    log.check("built")
    assert log.activation_bytes() == 12
    log.lines.append(("WARNING", "Some tactic does not have sufficient memory\nto run."))
    with pytest.raises(BuildError, match=r"when it built: WARNING: Some tactic does not have sufficient memory"):
        log.check("built")


def test_without_tensorrt_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("trtllm_lite.builder.tensorrt.library.find_spec", {}.get)
    checkpoint = save_checkpoint(tmp_path, "llama", "bfloat16")
    with pytest.raises(BuildError, match=r"pip install 'trtllm_lite\[tensorrt-rtx\]'"):
        build_engine(checkpoint, tmp_path / "engine", **_BUILD)


def test_tensorrt_proper_builds_for_its_own_gpu_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    proper = Library("tensorrt", "10.16.0", find_library().module)
    monkeypatch.setattr("trtllm_lite.builder.tensorrt.backend.find_library", lambda: proper)
    checkpoint = save_checkpoint(tmp_path, "llama", "bfloat16")
    with pytest.raises(BuildError, match="compiles for the GPU of its machine alone"):
        build_engine(checkpoint, tmp_path / "engine", **_BUILD)
