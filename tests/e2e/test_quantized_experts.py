"""Schemes round the weights of experts, with one scale for each row or group, and do not round their inputs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

from tests.e2e.test_generate import TINY_LIMITS, check_greedy, expected_logits, generate, random_prompts
from tests.e2e.test_quantize import TEXT, feeds_of, logits
from tests.e2e.test_tensor_parallel import LIMITS, checkpoint_of, opened, two_steps
from tests.models import GROUP_SIZE, MOE_FAMILIES, quantize_experts, round_matrices, save_tiny_model
from tests.tolerances import GPU_TOLERANCES, assert_close
from tests.unit.quantize.made_up import made_up
from trtllm_lite.builder import Checkpoint, build_engine, open_checkpoint
from trtllm_lite.builder.graph import nodes_of, operands
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.cli import cli
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import BuildError
from trtllm_lite.network.tensors import Computed
from trtllm_lite.plugins.schema import DOMAIN
from trtllm_lite.quantize.activations import recognise
from trtllm_lite.quantize.formats import Scaled
from trtllm_lite.quantize.network import Recipe, quantize_network
from trtllm_lite.quantize.products import find_products
from trtllm_lite.quantize.schemes import SCHEMES
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.sequence_runner import SequenceRunner

EVEN: dict[str, Any] = {  # sizes that are multiples of the group size
    **{"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 48, "num_hidden_layers": 2},
    **{"shared_expert_intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "num_experts": 6},
    "mlp_only_layers": [],
}


def experts_alone(qformat: str) -> Recipe:
    return Recipe(overrides=(("*.experts.*", qformat),), group_size=GROUP_SIZE)


def even(directory: Path, **overrides: Any) -> Checkpoint:
    return checkpoint_of("qwen2_moe", directory, **{**EVEN, **overrides})


def quantized(checkpoint: Checkpoint, recipe: Recipe) -> Checkpoint:
    network, _ = quantize_network(checkpoint.model, recipe, made_up(checkpoint.model))
    return replace(checkpoint, model=network)


@pytest.mark.parametrize(
    ("family", "qformat", "sizes"),
    [
        *((family, "fp8_wo", {}) for family in MOE_FAMILIES),
        *(("qwen2_moe", qformat, EVEN) for qformat in ("int8_wo", "int4_wo")),
    ],
)
def test_engines_compute_with_rounded_experts(family: str, qformat: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    """transformers gives the same logits if the matrices of its experts are rounded in the same way."""
    model = save_tiny_model(family, tmp_path / "model", **sizes)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "float32")
    source = quantized(open_checkpoint(tmp_path / "checkpoint"), experts_alone(qformat))
    build_engine(source, tmp_path / "engine", **TINY_LIMITS)
    quantize_experts(model, qformat)
    prompts = random_prompts(6, 4)
    outputs = generate(ModelRunner.from_dir(tmp_path / "engine"), prompts, 6)
    for prompt, (tokens, found) in zip(prompts, outputs, strict=True):
        check_greedy(model, prompt, tokens, found)


@pytest.mark.parametrize("qformat", ["fp8_wo", "int8_wo", "int4_wo"])
def test_engines_of_16_bits(qformat: str, tmp_path: Path) -> None:
    """CPUs with a bfloat16 unit, like GPUs, also round the inputs of products to 16 bits."""
    model = save_tiny_model("qwen2_moe", tmp_path / "model", **EVEN)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    source = quantized(open_checkpoint(tmp_path / "checkpoint"), experts_alone(qformat))
    build_engine(source, tmp_path / "engine", **TINY_LIMITS)
    quantize_experts(round_matrices(model, "bfloat16"), qformat)
    prompts = random_prompts(6, 4)
    outputs = generate(ModelRunner.from_dir(tmp_path / "engine"), prompts, 6)
    for prompt, (tokens, found) in zip(prompts, outputs, strict=True):
        assert_close(found, expected_logits(model, prompt, tokens), "bfloat16", table=GPU_TOLERANCES)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A model whose sizes are multiples of the group size."""
    return even(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def source_logits(source: Checkpoint) -> np.ndarray:
    """onnxruntime's logits for ``source``."""
    return logits(source.model, feeds_of(source))


@pytest.mark.parametrize("qformat", sorted(SCHEMES))
def test_every_scheme_reaches_experts(
    qformat: str, source: Checkpoint, source_logits: np.ndarray, tmp_path: Path
) -> None:
    """The network is standard ONNX, which onnxruntime runs like engines do; the inputs of experts are never rounded."""
    wanted = Recipe(qformat, group_size=GROUP_SIZE)
    after = quantized(source, wanted)
    left = {product.name for product in find_products(after.model.graph)}
    assert left == {"lm_head"}
    for node in after.model.graph:
        if node.op_type == "MatMul" and ".experts." in str(node.name):
            assert recognise(node.inputs[0]) is None
    feeds = feeds_of(source)
    expected = logits(after.model, feeds)
    build_engine(after, tmp_path / "engine", max_batch_size=2, max_seq_len=64, gather_context_logits=True)
    runner = SequenceRunner(tmp_path / "engine")
    tokens = feeds["input_ids"].astype(np.int32)
    computed = np.stack([np.concatenate(list(runner.logits(row, 7))) for row in tokens])
    # Another order of summation may round activations to another number.
    assert np.std(computed - expected) < 0.2 * np.std(source_logits - expected)


def test_groups_and_rows_have_a_scale(tmp_path: Path) -> None:
    source = even(tmp_path)
    for qformat, dtype, groups in (("fp8", "FLOAT8E4M3FN", (1, 1)), ("int4_awq", "INT4", (4, 3))):
        fused, _ = run_passes(quantized(source, Recipe(qformat, group_size=GROUP_SIZE)).model)
        for op_type, count in zip(("GroupedGatedLinear", "GroupedLinear"), groups, strict=True):
            for node in nodes_of(fused.graph, op_type, DOMAIN):
                given = operands(node)
                assert given["weight"].dtype == ir.DataType[dtype]
                assert given["weight_scale"].shape[-1] == count
                assert "weight_offset" not in given


def test_rows_that_are_no_whole_groups_are_refused(tmp_path: Path) -> None:
    source = even(tmp_path, moe_intermediate_size=40)
    message = r"layers\.0\.mlp\.experts\.down_proj has rows of 40 weights, .* groups of 16: .*pass --group_size 8"
    with pytest.raises(BuildError, match=message):
        quantize_network(source.model, experts_alone("int4_wo"))
    with pytest.raises(BuildError, match="one pattern cover both"):
        quantize_network(source.model, Recipe(overrides=(("*.experts.up_proj", "int8_wo"),)))


def test_some_rows_are_rounded_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory must not grow with the number of experts: for all rows only the stored result is held."""
    rows: list[int] = []
    pack = Scaled._pack_rows

    def noting(self: Scaled, blocks: np.ndarray, weight: np.ndarray, scale: np.ndarray) -> None:
        rows.append(len(blocks))
        pack(self, blocks, weight, scale)

    monkeypatch.setattr("trtllm_lite.quantize.formats.scaled._ELEMENTS_AT_ONCE", 64 * 48)
    monkeypatch.setattr(Scaled, "_pack_rows", noting)
    network, _ = quantize_network(even(tmp_path).model, experts_alone("fp8_wo"))
    (tensor,) = [
        value.const_value
        for name, value in network.graph.initializers.items()
        if "layers.0.mlp.experts.gate_proj" in name and name.endswith(".weight") and value.dtype != ir.DataType.FLOAT
    ]
    assert isinstance(tensor, Computed)
    tensor.numpy()
    assert rows == [48] * 6


@pytest.mark.parametrize("moe_ep_size", [1, 2])
@pytest.mark.parametrize("qformat", ["fp8_wo", "int8_wo", "int4_wo"])
def test_ranks_have_the_scales_of_their_experts(qformat: str, moe_ep_size: int, tmp_path: Path) -> None:
    """Ranks hold whole experts, or some features of each: of three groups of 16 features, one rank has two."""
    source = quantized(even(tmp_path), Recipe(qformat, group_size=GROUP_SIZE))
    build_engine(source, tmp_path / "one", **LIMITS)
    build_engine(source, tmp_path / "many", tp_size=2, moe_ep_size=moe_ep_size, **LIMITS)
    one, many = (two_steps(opened(tmp_path / name)) for name in ("one", "many"))
    for expected, found in zip(one, many, strict=True):
        assert_close(found, expected)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_commands_say_what_becomes_of_experts(tmp_path: Path) -> None:
    """The commands calibrate first; the inputs of experts have no part in calibration."""
    even(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    source = ["--checkpoint_dir", tmp_path / "checkpoint", "--qformat", "int8_sq"]
    how = [*source, "--calib_dataset", tmp_path / "text.txt", "--calib_max_seq_length", 48]
    said = run("quantize", *how, "--output_dir", tmp_path / "out")
    assert "of 8 inputs (layers.0.attention.q_proj, …): smoothed" in said
    experts = "6 of 6 products of experts (layers.0.mlp.experts.gate_proj, …): int8 with a scale for each row, rounded"
    assert f"{experts} to the nearest; activations stay as they are" in said
    assert experts in run("build", *how, "--output_dir", tmp_path / "engine", "--max_seq_len", 64)


def test_mixed_precision_counts_experts(tmp_path: Path) -> None:
    even(tmp_path, num_hidden_layers=1)
    (tmp_path / "text.txt").write_text(TEXT * 2, encoding="utf-8")
    source = ["--checkpoint_dir", tmp_path / "checkpoint", "--output_dir", tmp_path / "out"]
    how = ["--calib_dataset", tmp_path / "text.txt", "--autoq_format", "fp8_wo", "--auto_quantize_bits", 12]
    run("quantize", *source, *how)
    table = json.loads(open_checkpoint(tmp_path / "out").model.metadata_props["trtllm_lite.autoq"])
    candidates = [row["candidates"] for row in table if row["site"].startswith("layers.0.mlp.")]
    assert len(candidates) == 4  # of experts and of shared experts: gate and up, and down
    bits = {
        plain["qformat"]: sum(one["bits"] for one in of) for of in zip(*candidates, strict=True) for plain in of[:1]
    }
    experts, shared = 6 * 3 * 48 * 64, 3 * 32 * 64
    assert bits["full_prec"] == 32 * (experts + shared)
    rows = 6 * (2 * 48 + 64) + 2 * 32 + 64
    assert bits["fp8_wo"] == 8 * (experts + shared) + 32 * rows
