"""GPU engine files, built by NVRTC on whatever machine this is."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("cuda.bindings.nvrtc", reason="the cuda extra is not installed")

from tests.timing_caches import save_tiles_first
from tests.unit.builder.checkpoints import save_checkpoint
from tests.unit.builder.cuda_engines import CUDA_VARIANTS, LIMITS, cuda_shape, lowered, save_cuda_engine
from tests.unit.builder.networks import VARIANTS
from tests.unit.builder.plan_interpreter import header_of
from tests.unit.engine.samples import caches
from trtllm_lite._core import Engine
from trtllm_lite.builder import build, build_engine, plan_memory
from trtllm_lite.cli import cli
from trtllm_lite.engine.difference import compare_paths
from trtllm_lite.engine.manifest import CacheGroup, Target
from trtllm_lite.engine.plan import Plan
from trtllm_lite.engine.reader import EngineFile, read_engine
from trtllm_lite.engine.writer import EngineContent, write_engines
from trtllm_lite.errors import BuildError
from trtllm_lite.workflows.inspect import inspect_path

MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 72,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineFile:
    """An engine of the usual shape."""
    return save_cuda_engine(tmp_path_factory.mktemp("llama"))


@pytest.mark.each_value
@pytest.mark.parametrize("qformat", ["int8_wo", "int4_wo"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_engines_of_quantized_weights_are_written(qformat: str, target: str, tmp_path: Path) -> None:
    """The runtime can read the engine that a build writes."""
    save_checkpoint(tmp_path / "checkpoint", cuda_shape(inter=128))
    how = {**LIMITS, "max_batch_size": 1, "qformat": qformat, "group_size": 32, "target": target}
    assert build_engine(tmp_path / "checkpoint", tmp_path / "engine", **how).qformat == qformat


def test_every_cubin_is_in_the_file(engine: EngineFile) -> None:
    plan = engine.plan
    assert isinstance(plan, Plan)
    keys = {key for kernel in plan.kernels for key in kernel.cubins.values()}
    assert {f"cubin.{key}" for key in keys} == {name for name in engine.tensors if name.startswith("cubin.")}
    data = engine.path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for key in keys:
        begin, end = header_of(engine.path)[f"cubin.{key}"]["data_offsets"]
        assert data[start + begin : start + end].startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("variant", "how"),
    [
        ("llama", {"targets": "sm_90,sm_80"}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("wgmma", {"kv_cache_dtype": "int8", "kv_cache_scale": 0.03125}),
    ],
)
def test_the_runtime_reads_it(variant: str, how: dict[str, Any], tmp_path: Path) -> None:
    """The runtime's reader, in C++, checks every number."""
    engine = save_cuda_engine(tmp_path, CUDA_VARIANTS[variant], **how)
    assert Engine(str(engine.path)).plan == engine.plan.to_json()
    assert engine.manifest.kv_cache.dtype == how.get("kv_cache_dtype", "bfloat16")


def test_weights_lie_where_the_plan_says(engine: EngineFile) -> None:
    weights = {tensor.name: tensor.offset for tensor in engine.plan.tensors if tensor.kind == "weight"}
    assert len(weights) == 15
    assert {name: engine.tensors[f"weights.{name}"].data_offsets[0] for name in weights} == weights


def test_the_manifest_names_target_and_cache(engine: EngineFile) -> None:
    manifest = engine.manifest
    assert manifest.target == Target("cuda", ("sm_90a",))
    cache = manifest.kv_cache
    assert (cache.dtype, cache.num_blocks, cache.num_layers) == ("bfloat16", 6, 2)
    assert cache.groups == (CacheGroup("full", "full", 0, caches((2, 16), "bfloat16", [0, 1])),)
    assert cache.bytes_per_block == 2 * 2 * 2 * 16 * 32 * 2
    assert not manifest.stripped


def test_the_same_inputs_give_the_same_bytes(
    engine: EngineFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One build has a cold kernel cache, the other a warm one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    for name in ("cold", "warm"):
        build_engine(engine.path.parents[1] / "checkpoint", tmp_path / name, **LIMITS, target="sm_90")
        assert (tmp_path / name / "rank0.engine").read_bytes() == engine.path.read_bytes()


def test_lower_limits_compile_nothing_again() -> None:
    def sources(**limits: int) -> set[tuple[Any, ...]]:
        """Sources and options of a compilation, which identify it."""
        kernels = lowered(cuda_shape(vocab=2000), **limits).kernels()
        return {(kernel.source, kernel.defines, arch) for kernel, arch in kernels}

    compiled = sources(max_batch_size=100)
    assert len(compiled) > 20
    for limits in (*({"max_batch_size": batch} for batch in (1, 7, 16)), {"max_seq_len": 40}):
        assert sources(**limits) <= compiled


@pytest.mark.usefixtures("no_machine_code")
def test_another_max_seq_len_changes_no_results(tmp_path: Path) -> None:
    """Only the width of block tables and the room for logit edits change; cubins are compared by key."""
    engine = save_cuda_engine(tmp_path, cuda_shape(vocab=2000))
    build_engine(tmp_path / "checkpoint", tmp_path / "shorter", **{**LIMITS, "max_seq_len": 32}, target="sm_90")
    comparison = compare_paths(engine.path, tmp_path / "shorter")
    found = {item.name: (item.a, item.b) for item in comparison.differences if item.section == "limits"}
    assert found == {"max_seq_len": (48, 32), "edits of logits on the GPU": (1024 + 48, 1024 + 32)}
    assert not comparison.changes_results


def test_memory_is_predicted_without_compiling(engine: EngineFile) -> None:
    memory = plan_memory(engine.path.parents[1] / "checkpoint", **LIMITS, target="sm_90")
    assert memory.to_manifest() == engine.manifest.memory
    assert memory.kv_cache == 7 * engine.manifest.kv_cache.bytes_per_block  # one block is padding
    assert memory.arena == engine.plan.arena_bytes
    assert memory.scratch == engine.plan.cuda.workspace_bytes + engine.plan.state_bytes


def test_measured_tiles_are_compiled_and_explained(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", cuda_shape())
    cache = save_tiles_first(checkpoint, tmp_path / "tiles.json", **LIMITS)
    build_engine(checkpoint, tmp_path / "engine", **LIMITS, target="sm_90", input_timing_cache=cache)
    found = inspect_path(tmp_path / "engine")
    assert found.programs["mixed"]["gated_linear_tiled"] == 2
    tactic = next(tactic for tactic in found.tactics if tactic.site == "gated_linear_tiled 96 x 64 of mixed (sm_90a)")
    assert tactic.reason == "fastest on Test GPU: 48 rows 1.0 us (2.0 us by cublaslt)"
    assert "tile_rows 64" in tactic.choice


def test_inspect_shows_targets_and_programs(tmp_path: Path) -> None:
    save_cuda_engine(tmp_path, targets="sm_80,sm_90")
    found = inspect_path(tmp_path / "engine")
    assert found.target == "sm_80 sm_90a"
    assert found.operators == {}
    assert found.programs["mixed (sm_90a)"]["matmul"] == 9
    assert found.programs["decode_1 (sm_80)"] == {
        "cache_slots": 1,
        "embedding": 1,
        "rotary_table": 1,
        "qkv_linear": 2,
        "paged_attention_decode": 2,
        "linear": 5,
        "gated_linear": 2,
        "sample": 1,
    }


def test_float32_checkpoints_are_errors(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"stores its matrices as float32, .*: convert again with --dtype bfloat16"):
        build_engine(save_checkpoint(tmp_path / "c", VARIANTS["llama"]), tmp_path / "e", **LIMITS, target="sm_90")


def _build(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MODEL_CONFIG))
    limits = ["--max_batch_size", "3", "--max_input_len", "16", "--max_seq_len", "48"]
    command = ["build", "--model_config", str(config), "--output_dir", str(tmp_path / "engine"), *limits, *arguments]
    result = CliRunner().invoke(cli, command)
    return result.exit_code, result.output


@pytest.mark.parametrize(("target", "where"), [("cpu", "mapped from the engine"), ("sm_90", "copied to the GPU")])
def test_plan_says_where_weights_lie(tmp_path: Path, target: str, where: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MODEL_CONFIG))
    command = ["plan", "--model_config", str(config), "--max_input_len", "16", "--max_seq_len", "48"]
    result = CliRunner().invoke(cli, [*command, "--target", target])
    assert result.exit_code == 0, result.output
    assert where in " ".join(result.output.split())


def test_an_engine_of_a_shape_has_no_weights(tmp_path: Path) -> None:
    code, output = _build(tmp_path, "--strip_plan", "--target", "sm_90")
    assert code == 0, output
    engine = read_engine(tmp_path / "engine")
    assert engine.manifest.stripped
    assert engine.manifest.files == {}
    assert not [name for name in engine.tensors if name.startswith("weights.")]
    weights = [tensor for tensor in engine.plan.tensors if tensor.kind == "weight"]
    assert engine.manifest.memory.weights >= sum(weight.max_bytes({}) for weight in weights) > 0
    assert inspect_path(tmp_path / "engine").target == "sm_90a, without weights"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "sm_90"], "a model config has no weights to build with"),
        (["--strip_plan"], "CPU engines map their weights, so pass a GPU target"),
        (["--checkpoint_dir", "ckpt"], "pass --checkpoint_dir, or --model_config"),
    ],
)
def test_a_shape_that_cannot_be_built(tmp_path: Path, arguments: list[str], message: str) -> None:
    code, output = _build(tmp_path, *arguments)
    assert code != 0
    assert message in output
    assert not (tmp_path / "engine").exists()


def test_what_the_runtime_refuses_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", cuda_shape())

    def damaged(engines: dict[Path, EngineContent], progress: Any) -> None:
        wrong = {
            path: replace(engine, plan=engine.plan.replace('"decode_batches":[', '"decode_batches":[9,'))
            for path, engine in engines.items()
        }
        write_engines(wrong, progress)

    monkeypatch.setattr(build, "write_engines", damaged)
    with pytest.raises(BuildError, match=r"the runtime refuses the engine \(.*decode_batches.*\); this is a defect"):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS, target="sm_90")
    assert not (tmp_path / "engine").exists()
