"""Engines of TensorRT for RTX, built for two architectures without a GPU: what they contain, and what is refused."""

import json
import re
import shutil
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
import pytest

from tests.models import NETWORK_FAMILIES, save_tiny_model
from tests.unit.builder.checkpoints import save_checkpoint as save_network
from tests.unit.builder.networks import Shape
from tests.unit.quantize.made_up import made_up
from tests.unit.tensorrt.shapes import ARCHS, LIMITS, rewritten, save_checkpoint
from trtllm_lite import _core
from trtllm_lite.builder import build_engine, plan_memory
from trtllm_lite.builder.backends import backend_of
from trtllm_lite.builder.graph import value_of
from trtllm_lite.builder.job import Tuning
from trtllm_lite.builder.tensorrt import apart, worker
from trtllm_lite.builder.tensorrt.apart import build_apart
from trtllm_lite.builder.tensorrt.layers import layers_of
from trtllm_lite.builder.tensorrt.library import Library, find_library
from trtllm_lite.builder.tensorrt.log import Log
from trtllm_lite.builder.tensorrt.request import write_request
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.manifest import Tactic
from trtllm_lite.engine.page import render_page
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.engine_cache import list_cache
from trtllm_lite.errors import BuildError, DeviceError
from trtllm_lite.network.tensors import add_initializer, stored
from trtllm_lite.quantize.network import Recipe, quantize_network
from trtllm_lite.workflows.inspect import inspect_path

_BUILD: dict[str, Any] = {
    **{"backend": "tensorrt", "target": ARCHS},
    **{"max_batch_size": 3, "max_input_len": 32, "max_seq_len": 64},
}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "trtllm_lite" / "networks"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint of Llama, the engine that was built of it, and the cache of that build."""
    directory = tmp_path_factory.mktemp("first")
    checkpoint = save_checkpoint(directory, "llama", "bfloat16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        build_engine(checkpoint, directory / "engine", **_BUILD)
    return directory


@pytest.fixture
def built(first: Path, tmp_path: Path, cache: Path) -> Path:
    """The test's own copy of ``first``, whose cache is the test's cache."""
    shutil.copytree(first, tmp_path, dirs_exist_ok=True, symlinks=True)
    assert cache.is_dir()
    return tmp_path


def _ignore(done: int, total: int) -> None:
    del done, total


def _layers(model: ir.Model, dtype: str, directory: Path) -> tuple[Tactic, ...]:
    """The layers of the engine that TensorRT makes of ``model`` for ARCHS."""
    graph, library = rewritten(model, dtype)[0].graph, find_library()
    (directory / "request").mkdir()
    write_request(directory / "request", graph, LIMITS, ARCHS, library, _ignore)
    return layers_of(build_apart(directory / "request", library.package).lines)


def _sites(layers: Sequence[Tactic], phase: str) -> str:
    return " ".join(layer.site for layer in layers if layer.site.startswith(f"{phase}: "))


@pytest.mark.parametrize("family", NETWORK_FAMILIES)
def test_every_family_builds_with_the_layers_it_should_have(family: str, tmp_path: Path) -> None:
    layers = _layers(save_checkpoint(tmp_path, family, "bfloat16").model, "bfloat16", tmp_path)
    kernels = Counter(layer.choice.partition(" ")[0] for layer in layers)
    is_capped = family in ("gemma2", "vaultgemma")
    assert kernels["attention"] == (0 if is_capped else 4)  # 2 layers in 2 profiles; soft caps have no kernel
    for phase in ("context", "generation"):
        sites = _sites(layers, phase)
        for node in ("layers.1.attention.k_cache", "layers.1.attention.v_cache", "layers.1.attention.o_proj"):
            assert node in sites, (phase, node)
        assert ("layers.0.attention.q_rope" in sites) == (family != "gpt2")


_PRODUCTS = [
    f"layers.{layer}.{product}"
    for layer in range(2)
    for product in (
        *(f"attention.{name}_proj" for name in "qkvo"),
        *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    )
]


@pytest.mark.parametrize(
    ("qformat", "family", "kernel"),
    [
        ("int4_wo", "llama", "runtime_fusion of Half, Int4"),
        ("int4_awq", "qwen3", "runtime_fusion of Half, Int4"),
        ("int4_gptq", "mistral", "runtime_fusion of Half, Int4"),
        ("int8_sq", "gemma3", "gemm of Float, Int8"),
        ("fp8", "llama", "gemm of FP8, Float"),
        ("fp8_rowwise", "qwen2", "gemm of FP8, Float"),
        ("fp8_gptq", "qwen3", "gemm of FP8, Float"),
        ("fp8_rowwise_gptq", "llama", "gemm of FP8, Float"),
    ],
)
def test_quantized_products_run_in_their_type(qformat: str, family: str, kernel: str, tmp_path: Path) -> None:
    """Only layers that multiply read the narrow type: no layer merely dequantizes."""
    model = save_checkpoint(tmp_path, family, "float16").model
    quantized, _ = quantize_network(model, Recipe(qformat, group_size=32), made_up(model))
    layers = _layers(quantized, "float16", tmp_path)
    (narrow,) = {"Int4", "Int8", "FP8"} & set(re.split(r"\W+", kernel))
    assert {layer.choice for layer in layers if narrow in layer.choice} == {kernel}
    products = [layer for layer in layers if layer.choice.startswith(("gemm", "runtime_fusion"))]
    for phase in ("context", "generation"):
        for product in _PRODUCTS:
            found = [layer.choice for layer in products if product in _nodes(layer, phase)]
            assert found == [kernel], (phase, product)


def _nodes(layer: Tactic, phase: str) -> list[str]:
    """The nodes that ``layer`` computes in steps of ``phase``."""
    of, _, nodes = layer.site.partition(": ")
    return nodes.split(" + ") if of == phase else []


def test_an_engine_says_what_it_is(first: Path) -> None:
    manifest = read_engine(first / "engine").manifest
    assert manifest.target.kind == "tensorrt"
    assert manifest.target.archs == ARCHS
    cache = manifest.kv_cache
    assert (cache.tokens_per_block, cache.num_blocks, cache.dtype) == (64, 3, "bfloat16")
    assert cache.bytes_per_block == 2 * 2 * 2 * 64 * 32 * 2  # keys and values of 2 layers, 2 heads, 64 tokens of 32
    assert manifest.memory.workspace > 0
    context, generation = read_engine(first / "engine").plan.programs
    assert (context.max_tokens, generation.max_tokens, generation.decode_only) == (64, 3, True)
    inspection = inspect_path(first / "engine")
    assert inspection.target.startswith("sm_89 sm_120, by TensorRT (execution has not been verified on RTX hardware")
    assert any(tactic.choice.startswith("attention") for tactic in inspection.tactics)
    page = render_page(inspection)
    assert "tensorrt_rtx" in page
    assert "layers.1.attention.k_cache" in page
    assert _core.Engine(str(first / "engine" / "rank0.engine"))


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


def test_attention_sinks_are_refused(tmp_path: Path) -> None:
    save_tiny_model("gpt_oss", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    with pytest.raises(BuildError, match=r"layers\.0\.attention.* has attention sinks, .*without --backend tensorrt"):
        build_engine(tmp_path / "checkpoint", tmp_path / "engine", **_BUILD)


def test_layers_that_differ_are_refused(tmp_path: Path) -> None:
    shape = Shape(dtype=ir.DataType.BFLOAT16, layer_kv_heads=(2, 3))
    checkpoint = save_network(tmp_path / "checkpoint", shape)
    with pytest.raises(BuildError, match=r"layers\.1\..* keeps 3 heads of 10 elements, .* the 2 of 10 of config.json"):
        build_engine(checkpoint, tmp_path / "engine", **_BUILD)


def test_matrices_of_float32_are_refused(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama", "float32")
    with pytest.raises(BuildError, match=r"the checkpoint is float32.*--dtype bfloat16"):
        build_engine(checkpoint, tmp_path / "engine", **_BUILD)


def test_plan_says_what_is_known_before_a_build(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama", "bfloat16")
    with pytest.raises(BuildError, match=r"weights take .* bytes and the KV cache 98,304"):
        plan_memory(checkpoint, **_BUILD)


_AGAIN = """
import sys
from pathlib import Path
from trtllm_lite.builder import build_engine
build_engine(Path("checkpoint"), Path("again/engine"), **{arguments!r})
"""


def test_another_process_elsewhere_makes_the_same_bytes(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(first / "checkpoint", tmp_path / "checkpoint")
    temporary = tmp_path / ("a long name " * 16)
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    subprocess.run([sys.executable, "-c", _AGAIN.format(arguments=_BUILD)], cwd=tmp_path, check=True)
    names = ("rank0.engine", "config.json")
    built = [[(place / "engine" / name).read_bytes() for name in names] for place in (first, tmp_path / "again")]
    assert built[0] == built[1]
    assert not list(temporary.iterdir())


def _requests(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A list to which the directory of each request that TensorRT builds is added."""
    requests: list[Path] = []

    def build(directory: Path, package: str) -> Log:
        requests.append(directory)
        return build_apart(directory, package)

    monkeypatch.setattr("trtllm_lite.builder.tensorrt.compile.build_apart", build)
    return requests


def test_the_same_network_is_built_once(built: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint's directory makes no difference; other weights, limits or targets make another network."""
    requests = _requests(monkeypatch)
    shutil.copytree(built / "checkpoint", built / "copy")
    assert build_engine(built / "copy", built / "again", **_BUILD) == read_engine(built / "engine").manifest
    assert (built / "again" / "rank0.engine").read_bytes() == (built / "engine" / "rank0.engine").read_bytes()
    assert requests == []
    weights = built / "copy" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x3f")
    changed = ({"target": "sm_89"}, {"max_batch_size": 2})
    for number, changes in enumerate(changed):
        build_engine(built / "checkpoint", built / "other", **{**_BUILD, **changes})
        assert len(requests) == 1 + number
    build_engine(built / "copy", built / "other", **_BUILD)
    assert len(requests) == 3
    assert {entry.kind for entry in list_cache()} == {"networks"}
    assert len(list(cache.glob("*/network.image"))) == 4


def test_the_cache_knows_what_the_builder_ran_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python and the heap decide where TensorRT's objects lie, and so the bytes of its engines."""
    graph = rewritten(save_checkpoint(tmp_path, "llama", "bfloat16").model, "bfloat16")[0].graph

    def key(name: str) -> str:
        (tmp_path / name).mkdir()
        return write_request(tmp_path / name, graph, LIMITS, ARCHS, find_library(), _ignore)

    first = key("first")
    assert key("again") == first
    heap = tmp_path / "steady_heap.so"
    heap.write_bytes(apart.HEAP.read_bytes() + b"\0")
    with monkeypatch.context() as patch:
        patch.setattr(apart, "HEAP", heap)
        other_heap = key("other heap")
    monkeypatch.setattr(sys, "version", "3.99.0 (another build)")
    assert len({first, other_heap, key("other Python")}) == 3


def test_a_damaged_entry_of_the_cache_is_made_again(built: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = _requests(monkeypatch)
    (image,) = cache.glob("*/network.image")
    sound = image.read_bytes()
    image.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    build_engine(built / "checkpoint", built / "engine", **_BUILD)
    assert len(requests) == 1
    assert image.read_bytes() == sound


def test_weights_are_read_where_the_checkpoint_has_them(tmp_path: Path) -> None:
    """Only weights that TensorRT gets in another form than the checkpoint's are written."""
    checkpoint = save_checkpoint(tmp_path, "llama", "bfloat16")
    quantized, _ = quantize_network(checkpoint.model, Recipe("int4_wo", group_size=32), made_up(checkpoint.model))
    for name, model in (("plain", checkpoint.model), ("int4", quantized)):
        graph = rewritten(model, "bfloat16")[0].graph
        (tmp_path / name).mkdir()
        write_request(tmp_path / name, graph, LIMITS, ARCHS, find_library(), _ignore)
        for weight, file, offset, size in json.loads((tmp_path / name / worker.REQUEST).read_text())["weights"]:
            found = (tmp_path / name / file).read_bytes()[offset : offset + size]
            tensor = graph.initializers[weight].const_value
            assert tensor is not None
            assert found == tensor.tobytes(), weight
    assert (tmp_path / "plain" / "computed").stat().st_size == 0
    assert (tmp_path / "int4" / "computed").stat().st_size > 0
    assert (tmp_path / "plain" / "stored0").resolve() == tmp_path / "checkpoint" / "weights.safetensors"


def test_stored_weights_are_in_no_memory_of_this_process(tmp_path: Path) -> None:
    """For the digest, only a piece of the weights at a time is in memory."""
    num_bytes = 1 << 27
    with open(tmp_path / "weights", "wb") as file:
        file.truncate(num_bytes)
    ids = value_of("input_ids", ir.DataType.INT64, ["batch", "seq"])
    graph = ir.Graph([ids], [], nodes=[], opset_imports={"": 24})
    weights = stored(tmp_path / "weights", 0, ir.DataType.BFLOAT16, (1 << 10, 1 << 16))
    looked_up = ir.node("Gather", [add_initializer(graph, "table", weights), ids], name="embedding")
    graph.append(looked_up)
    graph.outputs.extend(looked_up.outputs)
    (tmp_path / "request").mkdir()
    tracemalloc.start()
    try:
        write_request(tmp_path / "request", graph, LIMITS, ARCHS, find_library(), _ignore)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < num_bytes / 2
    assert (tmp_path / "request" / worker.NETWORK).stat().st_size < 1 << 10


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended with exit code -11: if memory was short"),
        ("raise RuntimeError('no \\x1b luck')", r"ended with exit code 1 \(RuntimeError: no \\x1b luck\)"),
        ("import os; os._exit(0)", "ended before it built the engine"),
        ("import os; os.write(1, b'no \\x1b luck'); os._exit(0)", r"when it ended: STDERR: no \\x1b luck"),
    ],
)
def test_a_compiler_that_ends_otherwise_than_well_is_an_error(code: str, message: str, tmp_path: Path) -> None:
    (tmp_path / worker.PACKAGES).mkdir()
    (tmp_path / worker.PACKAGES / "broken_rt.py").write_text(code)
    with pytest.raises(BuildError, match=message):
        build_apart(tmp_path, "broken_rt")


def test_a_line_that_is_printed_at_the_end_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [["did", worker.PARSED, True], ["did", worker.BUILT, True]]
    monkeypatch.setattr(apart, "_messages", lambda *_: (message for message in messages))
    (tmp_path / "errors.txt").touch()
    assert build_apart(tmp_path, "tensorrt_rtx").lines == []
    messages.append(["line", "ERROR", "free(): invalid pointer"])
    with pytest.raises(BuildError, match=r"when it ended: ERROR: free\(\): invalid pointer"):
        build_apart(tmp_path, "tensorrt_rtx")


def test_a_log_without_memory_or_layers_is_refused() -> None:
    with pytest.raises(BuildError, match="did not print the engine's memory"):
        Log([("INFO", "Total Weights Memory: 12 bytes")]).activation_bytes()
    with pytest.raises(BuildError, match="did not list the engine's layers"):
        layers_of([("VERBOSE", worker.LISTING), ("INFO", "Name: a, LayerType: gemm, ")])


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


@pytest.fixture
def proper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for TensorRT proper, in place of TensorRT for RTX; no test has run with TensorRT proper itself."""
    library = Library("tensorrt", "10.16.0", SimpleNamespace())
    monkeypatch.setattr("trtllm_lite.builder.tensorrt.backend.find_library", lambda: library)


@pytest.mark.usefixtures("proper")
@pytest.mark.parametrize("targets", [["sm_120"], ["sm_89", "sm_120"]])
def test_tensorrt_proper_builds_for_no_gpu_but_its_own(targets: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "cuda_device", lambda: {"name": "a GPU", "arch": "sm_89"})
    with pytest.raises(BuildError, match=r"compiles for the GPU of its machine alone, and that is sm_89; .* sm_120"):
        backend_of(targets, "tensorrt")[0].check(targets, False, Tuning())


@pytest.mark.usefixtures("proper")
def test_tensorrt_proper_builds_for_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "cuda_device", lambda: {"name": "a GPU", "arch": "sm_90"})
    backend_of("sm_90", "tensorrt")[0].check(["sm_90"], False, Tuning())


@pytest.mark.usefixtures("proper")
def test_tensorrt_proper_builds_nothing_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise DeviceError("there is no driver")

    monkeypatch.setattr(_core, "cuda_device", none)
    with pytest.raises(BuildError, match=r"that is none \(there is no driver\); .*tensorrt-rtx"):
        backend_of("sm_90", "tensorrt")[0].check(["sm_90"], False, Tuning())


def test_every_architecture_of_the_library_is_taken_and_no_other() -> None:
    library = find_library()
    known = [name for name in library.module.ComputeCapability.__members__ if name.startswith("SM")]
    archs = [f"sm_{name[2:]}" for name in known]
    library.check_archs(archs)
    assert library.capabilities(archs) == known
    with pytest.raises(BuildError, match="the target of the backend tensorrt is sm_87: TensorRT for RTX builds for"):
        library.check_archs(["sm_89", "sm_87"])
