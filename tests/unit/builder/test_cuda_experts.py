"""GPU programs of mixtures of experts: what they compute, and which kernels they use."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.gguf_writer import write_gguf
from tests.models import MOE_FAMILIES, VOCAB_SIZE, save_tiny_model, tiny_model
from tests.quantized_writer import LAYOUTS, write_mxfp4_experts, write_quantized
from tests.tolerances import BYTE_TOLERANCES, MIXTURE_TOLERANCES
from tests.unit.builder.cuda_engines import LIMITS, lowered_model, recipe
from tests.unit.builder.cuda_interpreter import CudaInterpreter
from tests.unit.builder.early_reads import check_early_reads
from tests.unit.builder.networks import Shape
from tests.unit.builder.test_cuda_numerics import STEPS_WITH_DRAFTS, check_step, sequences_of
from tests.unit.quantize.made_up import made_up
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.cuda.planning import Lowered
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import BuildError
from trtllm_lite.network.verifier import load_network
from trtllm_lite.plugins.cuda.grouped import gated_gemv_config, summed_gemv_config
from trtllm_lite.plugins.cuda.weight_form import BlockNumbers, WeightForm, weight_form
from trtllm_lite.plugins.launch import Device, Launch
from trtllm_lite.quantize.network import quantize_network

# Extents that GPU kernels accept.
EXTENTS: dict[str, int] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
_LATENTS: dict[str, Any] = {  # the smallest latents that kernels support
    **{"num_key_value_heads": 4, "kv_lora_rank": 128, "qk_nope_head_dim": 16, "qk_rope_head_dim": 64},
    **{"v_head_dim": 16, "moe_intermediate_size": 48},
}
_HALF = {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}
SHAPES: dict[str, dict[str, Any]] = {
    "deepseek_v2": _LATENTS,
    "deepseek_v3": {**_LATENTS, "q_lora_rank": 24},
    "dots1": {"moe_intermediate_size": 48, "head_dim": 16},
    "ernie4_5_moe": {"moe_intermediate_size": 48},
    "hunyuan_v1_moe": {"head_dim": 16},
    "exaone_moe": {"moe_intermediate_size": 48, "head_dim": 16},
    "glm4_moe": {"moe_intermediate_size": 48, "head_dim": 16},
    "glm4_moe_lite": {**_LATENTS, "q_lora_rank": 24},
    "minimax_m2": {"head_dim": 16},
    "mimo_v2_flash": {
        **{"num_attention_heads": 8, "head_dim": 16, "v_head_dim": 12, "moe_intermediate_size": 48},
        "rope_parameters": {"full_attention": _HALF, "sliding_attention": _HALF},
    },
    "phimoe": {"head_dim": 16},
    "solar_open": {"moe_intermediate_size": 48, "head_dim": 16},
    **{family: {"moe_intermediate_size": 48, "head_dim": 16} for family in ("afmoe", "hy_v3", "mellum")},
    "cohere2_moe": {"intermediate_size": 48, "prefix_dense_intermediate_size": 80, "head_dim": 16},
    "mixtral": {"head_dim": 16},
    "olmoe": {},
    "qwen2_moe": {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 80},
    "qwen3_moe": {"moe_intermediate_size": 48, "head_dim": 16},  # with 9 experts
    "granitemoe": {"shared_intermediate_size": 80, "num_local_experts": 5},
    "gpt_oss": {"head_dim": 16},
    "llama4": {"head_dim": 16, "intermediate_size": 48, "intermediate_size_mlp": 80},
}
# With these seeds no choice of an expert is so close that rounding changes it.
SEED, SEEDS = 9, {"gpt_oss": 10, "deepseek_v2": 4, "deepseek_v3": 11, "dots1": 5, "exaone_moe": 8}
SEEDS |= {"mimo_v2_flash": 20, "solar_open": 7, "mellum": 1}
CACHE = Shape(layers=3, kv_heads=2, head_dim=16, vocab=VOCAB_SIZE, max_seq=48)
_OF_LATENTS = replace(CACHE, kv_heads=1, head_dim=64, value_dim=128)
_LAYER = ["linear", "grouped_gated_linear", "grouped_linear"]  # kernels of a few rows
CACHES = dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), _OF_LATENTS)
CACHES["mimo_v2_flash"] = replace(CACHE, layers=4, layer_kv_heads=(2, 4))


def network_of(family: str, directory: Path, dtype: str = "bfloat16", **changes: Any) -> ir.Model:
    save_tiny_model(
        family, directory / "model", seed=SEEDS.get(family, SEED), **{**EXTENTS, **SHAPES.get(family, {}), **changes}
    )
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    return load_network(directory / "checkpoint")


def _kernels(lowered: Lowered, program: str) -> list[str]:
    commands = next(found.commands for found in lowered.programs if found.name == program)
    return [command.kernel.name for command in commands if isinstance(command, Launch)]


@pytest.mark.parametrize("family", MOE_FAMILIES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_programs_compute_the_networks_logits(family: str, dtype: str, tmp_path: Path) -> None:
    model = network_of(family, tmp_path, dtype)
    lowered = lowered_model(model, dtype)
    assert check_early_reads(lowered) > 0
    card = CudaInterpreter(lowered)
    state = sequences_of(CACHES.get(family, CACHE), card)
    for lens in ([31, 1, 4], [1, 1, 1], [1, 6, 2], [1, 1, 1]):
        check_step(card, state, lens, "decode_4" if max(lens) == 1 else "mixed", model, MIXTURE_TOLERANCES)


@pytest.mark.parametrize("chunk", [8, 24])
def test_programs_see_chunks_at_temperatures(chunk: int, tmp_path: Path) -> None:
    """Llama 4 without experts: steps cross chunks, and decoding is in the first chunk or a later one."""
    late = {"floor_scale": 5, "attn_scale": 0.7, "moe_layers": []}
    model = network_of("llama4", tmp_path, attention_chunk_size=chunk, **late)
    card = CudaInterpreter(lowered_model(model, "bfloat16"))
    state = sequences_of(CACHE, card)
    for lens in ([31, 1, 4], [1, 1, 1], [1, 9, 5], [1, 1, 1]):
        check_step(card, state, lens, "decode_4" if max(lens) == 1 else "mixed", model)


def test_programs_raise_temperatures_of_positions_from_0(tmp_path: Path) -> None:
    """Ministral 3, which has no experts, raises the temperature from its 9th position on, and again from the 17th."""
    model = network_of("ministral3", tmp_path, head_dim=16)
    card = CudaInterpreter(lowered_model(model, "bfloat16"))
    state = sequences_of(CACHE, card)
    for lens in ([17, 7, 4], [1, 1, 1], [1, 9, 5]):
        check_step(card, state, lens, "decode_4" if max(lens) == 1 else "mixed", model)


def test_chunks_of_whole_tiles_are_deterministic_in_blocks_of_any_size(tmp_path: Path) -> None:
    """Tiles of keys begin at the start of a chunk; chunks that are not whole tiles are refused, like windows."""
    network = network_of("llama4", tmp_path / "whole", attention_chunk_size=128, vocab_size=400)
    lowered = lowered_model(network, "bfloat16", deterministic=True)
    assert "paged_attention_prefill" in _kernels(lowered, "mixed")
    network = network_of("llama4", tmp_path / "part", attention_chunk_size=24, vocab_size=400)
    with pytest.raises(BuildError, match=r"deterministic is given, and attention has a window of 24 tokens"):
        lowered_model(network, "bfloat16", deterministic=True)


@pytest.mark.parametrize("kinds", ["Q4_0 Q4_0 Q4_0", "Q4_1 Q4_1 Q4_1", "Q4_0 Q4_0 Q8_0"])
def test_experts_of_files_stay_as_they_are(kinds: str, tmp_path: Path) -> None:
    names = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
    model = tiny_model("mixtral", seed=SEED, **{**EXTENTS, "intermediate_size": 128, "head_dim": 16})
    write_gguf(model, tmp_path / "m.gguf", dict(zip(names, kinds.split(), strict=True)))
    convert_checkpoint(str(tmp_path / "m.gguf"), tmp_path / "checkpoint", "bfloat16")
    network = load_network(tmp_path / "checkpoint")
    lowered = lowered_model(network, "bfloat16")
    assert not lowered.expansions
    card = CudaInterpreter(lowered)
    state = sequences_of(CACHE, card)
    for lens in ([31, 1, 4], [1, 1, 1], [1, 6, 2]):
        check_step(card, state, lens, "decode_4" if max(lens) == 1 else "mixed", network, MIXTURE_TOLERANCES)


@pytest.mark.parametrize(("family", "dtype"), [("qwen3_moe", "float8_e4m3fn"), ("gpt_oss", "float4_e2m1fn")])
def test_experts_of_checkpoints_stay_as_they_are(family: str, dtype: str, tmp_path: Path) -> None:
    if family == "gpt_oss":
        sizes = {**EXTENTS, "intermediate_size": 128, "head_dim": 16}
        write_mxfp4_experts(tiny_model(family, seed=15, **sizes), tmp_path / "model")
    else:
        sizes = {**EXTENTS, "hidden_size": 128, "moe_intermediate_size": 256, "head_dim": 16}
        write_quantized(tiny_model(family, seed=11, **sizes), tmp_path / "model", LAYOUTS["fp8 in tiles"])
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    network = load_network(tmp_path / "checkpoint")
    lowered = lowered_model(network, "bfloat16")
    assert not lowered.expansions
    weights = lowered.operands.weights
    experts = {b.name: b.dtype for b in weights if b.name.endswith("_proj.weight") and ".experts." in b.name}
    assert set(experts.values()) == {dtype}, experts
    card = CudaInterpreter(lowered)
    state = sequences_of(CACHE, card)
    for lens in ([31, 1, 4], [1, 1, 1], [1, 6, 2]):
        check_step(card, state, lens, "decode_4" if max(lens) == 1 else "mixed", network, MIXTURE_TOLERANCES)


def test_sums_are_normed_and_rounded_for_products_of_bytes(tmp_path: Path) -> None:
    model = network_of("qwen3_moe", tmp_path)
    model = quantize_network(model, recipe("fp8_rowwise"), made_up(model))[0]
    lowered = lowered_model(model, "bfloat16")
    commands = next(program.commands for program in lowered.programs if program.name == "mixed")
    sums = [dict(c.kernel.defines) for c in commands if isinstance(c, Launch) and c.kernel.name == "combine_norm"]
    assert [(macros["TL_Y_TYPE"], macros["TL_ROW_SCALES"]) for macros in sums] == [(1, 1), (1, 1), (0, 0)]
    card = CudaInterpreter(lowered)
    state = sequences_of(CACHE, card)
    for lens in ([31, 1, 4], [1, 6, 2]):
        check_step(card, state, lens, "mixed", model, BYTE_TOLERANCES)


def test_a_few_rows_take_no_more_than_three_kernels(tmp_path: Path) -> None:
    """Norms are in prologues, products choose experts, and the residual is added in the epilogue of the last one."""
    lowered = lowered_model(network_of("qwen3_moe", tmp_path, vocab_size=400), "bfloat16")
    kernels = _kernels(lowered, "decode_4")
    first = kernels.index("grouped_gated_linear") - 1
    assert kernels[first - 1 : first + 3] == ["linear", *_LAYER]
    assert kernels.count("rms_norm") == 0
    mixed = _kernels(lowered, "mixed")
    assert (mixed.count("combine_norm"), mixed.count("combine")) == (3, 0), "the sums have norms after them"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_shared_experts_with_a_gate_take_no_kernels_of_their_own(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SEEDS, "qwen2_moe", 1)  # no choice in three mixtures is close
    sizes = {"shared_expert_intermediate_size": 96, "mlp_only_layers": []}
    model = network_of("qwen2_moe", tmp_path, dtype, **sizes)
    lowered = lowered_model(model, dtype)
    kernels = _kernels(lowered, "decode_4")
    firsts = [at - 1 for at, name in enumerate(kernels) if name == "grouped_gated_linear"]
    assert [kernels[first : first + 3] for first in firsts] == [_LAYER] * 3
    assert not {"sigmoid_gate", "gated_linear", "rowwise"} & set(kernels)
    assert _kernels(lowered, "mixed").count("combine_norm") == 3, "the sums have norms after them"
    card = CudaInterpreter(lowered)
    state = sequences_of(CACHE, card)
    for lens in ([31, 1, 4], [1, 1, 1], [1, 6, 2], [1, 1, 1]):
        check_step(card, state, lens, "decode_4" if max(lens) == 1 else "mixed", model, MIXTURE_TOLERANCES)


def test_experts_without_gates_have_half_the_rows_twice(tmp_path: Path) -> None:
    """The shared expert of Nemotron is two of its experts; sums over experts read all features."""
    sizes = {"moe_latent_size": None, "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 96}
    of_states = {"mamba_num_heads": 8, "mamba_head_dim": 24, "n_groups": 2, "ssm_state_size": 24, "head_dim": 16}
    lowered = lowered_model(network_of("nemotron_h", tmp_path, **sizes, **of_states), "bfloat16")
    for program in lowered.programs:
        found = {}
        for command in program.commands:
            if isinstance(command, Launch) and command.kernel.name.startswith("grouped_"):
                found[command.kernel.name.split("_linear")[0]] = dict(command.kernel.defines)
        gated, summed = found["grouped_gated"], found["grouped"]
        assert (gated["TL_SELF_GATED"], gated["TL_OUT"], summed["TL_IN"]) == (1, 24, 48)
        assert gated["TL_TOP_K"] == 3 + 2


def test_the_order_of_sums_is_one_in_deterministic_engines(tmp_path: Path) -> None:
    lowered = lowered_model(network_of("qwen3_moe", tmp_path, vocab_size=400), "bfloat16", deterministic=True)
    for program in lowered.programs:
        kernels = _kernels(lowered, program.name)
        assert "grouped_linear" not in kernels
        assert kernels.count("grouped_linear_tiled") == 3


@pytest.mark.usefixtures("no_machine_code")
def test_ranks_list_their_own_experts(tmp_path: Path) -> None:
    """Kernels ask the rank for its experts, so that all ranks share one plan."""
    network_of("mixtral", tmp_path, num_local_experts=8)
    sizes = {"tp_size": 4, "moe_ep_size": 2, **LIMITS}
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", target="sm_90", strip_plan=True, **sizes)
    first, last = (read_engine(tmp_path / "engine" / f"rank{rank}.engine") for rank in (0, 3))
    assert first.plan == last.plan
    shapes = {tensor.name: tensor.shape for tensor in first.plan.tensors if tensor.kind == "weight"}
    assert {shape[0] for name, shape in shapes.items() if ".experts." in name} == {4}, shapes


def test_latents_of_other_extents_are_refused(tmp_path: Path) -> None:
    message = (
        r"layers\.0\.attention.*: latents have 24 elements, expected a multiple of 128 up to 512; the rotated part of "
        r"a key has 8 elements, expected 64: build for --target cpu"
    )
    with pytest.raises(BuildError, match=message):
        lowered_model(network_of("deepseek_v2", tmp_path, kv_lora_rank=24, qk_rope_head_dim=8), "bfloat16")


@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_with_drafts_attend_to_latents(tmp_path: Path, deterministic: bool) -> None:
    model = network_of("deepseek_v2", tmp_path, vocab_size=400)
    card = CudaInterpreter(lowered_model(model, "bfloat16", max_draft_len=4, deterministic=deterministic))
    state = sequences_of(CACHES["deepseek_v2"], card)
    for lens, program in STEPS_WITH_DRAFTS:
        check_step(card, state, lens, program, model, MIXTURE_TOLERANCES)


def test_batches_of_too_many_sequences_over_latents_are_refused(tmp_path: Path) -> None:
    """Latents of 512 elements leave little shared memory for anything else."""
    limits = {"max_batch_size": 384, "max_num_tokens": 384}
    network = network_of("deepseek_v2", tmp_path, kv_lora_rank=512)
    message = r"room for 320 sequences of up to 1 new tokens, not for 384: lower max_batch_size to 320"
    with pytest.raises(BuildError, match=message):
        lowered_model(network, "bfloat16", **limits)
    with pytest.raises(BuildError, match=r"room for 192 sequences of up to 3 new tokens, not for 235"):
        lowered_model(network, "bfloat16", max_batch_size=224, max_num_tokens=1024, max_draft_len=2)


def test_deterministic_engines_attend_to_latents_in_one_order(tmp_path: Path) -> None:
    """No kernel splits the keys of a sequence among its blocks."""
    lowered = lowered_model(network_of("deepseek_v2", tmp_path, vocab_size=400), "bfloat16", deterministic=True)
    for program in lowered.programs:
        launches = [command for command in program.commands if isinstance(command, Launch)]
        attend = [dict(launch.kernel.defines) for launch in launches if launch.kernel.name == "attend_latents"]
        num_kinds = 1 if program.bucket.decode else 2  # decode rows, and rows of prompts
        assert ["TL_MAX_ITEMS" in defines for defines in attend] == [False] * 3 * num_kinds
        assert all(defines == attend[0] for defines in attend)


@pytest.mark.usefixtures("no_machine_code")
def test_ranks_share_out_heads_over_latents(tmp_path: Path) -> None:
    network_of("deepseek_v2", tmp_path)
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", target="sm_90", strip_plan=True, tp_size=2, **LIMITS)
    first, last = (read_engine(tmp_path / "engine" / f"rank{rank}.engine") for rank in (0, 1))
    assert first.plan == last.plan
    shapes = {tensor.name: tensor.shape for tensor in first.plan.tensors}
    assert {shape for name, shape in shapes.items() if "k_up" in name} == {(2, 16, 128)}, shapes
    assert {shape[1:] for name, shape in shapes.items() if name.startswith("latent_cache.")} == {(1, 32, 128)}, shapes


def test_targets_without_tiles_are_refused(tmp_path: Path) -> None:
    message = r"products of more than 16 rows with experts need sm_90a, not sm_80: build for sm_90 or for cpu"
    with pytest.raises(BuildError, match=message):
        lowered_model(network_of("mixtral", tmp_path), "bfloat16", "sm_80")


def test_features_of_no_whole_vectors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"its experts have 64 features in and 36 out, .* expected multiples of 8"):
        lowered_model(network_of("qwen3_moe", tmp_path, moe_intermediate_size=36), "bfloat16")


def test_rows_of_padding_choose_no_experts_and_count_nowhere(tmp_path: Path) -> None:
    """Each program counts choices at the same addresses, and padding does not change the other rows."""
    model = network_of("qwen3_moe", tmp_path)
    alone, padded = (CudaInterpreter(lowered_model(model, "bfloat16")) for _ in range(2))
    layers, experts, top_k = 3, 9, 4
    assert len(alone.plan.tallies) == layers
    spare = alone.plan.symbols["num_blocks"]
    for card, rows in ((alone, 3), (padded, 4)):
        tables = np.full((rows, card.plan.symbols["max_blocks_per_seq"]), spare, np.int32)
        tables[:3, 0] = range(3)
        card.blocks = np.zeros(len(card.blocks) + len(card.blocks) // spare, np.uint8)
        inputs = {
            "token_ids": np.array([5, 6, 7, 0][:rows], np.int32),
            "token_slots": np.full(rows, -1, np.int32),
            "position_ids": np.zeros(rows, np.int32),
            "cu_seqlens": np.arange(rows + 1, dtype=np.int32),
            "past_lens": np.zeros(rows, np.int32),
            "logits_indices": np.arange(rows, dtype=np.int32),
            "sample_slots": np.full(rows, -1, np.int32),
            "block_tables": tables,
        }
        logits = card.step(inputs, "decode_4")[:3]
        tallies = [card.memory["state"][card.plan.tensors[i].offset :][: 8 * (experts + 3)] for i in card.plan.tallies]
        for tally in tallies:
            counts = tally.view(np.int64)
            assert counts[:experts].sum() == 3 * top_k == counts[-1]
            assert counts[experts : experts + 2].tolist() == [np.count_nonzero(counts[:experts]), 1]
        if card is alone:
            expected = logits, [tally.copy() for tally in tallies]
    np.testing.assert_array_equal(logits, expected[0])
    np.testing.assert_array_equal(tallies, expected[1])


MXFP4 = weight_form("float4_e2m1fn", blocks=BlockNumbers(32, "bfloat16", offsets=False))
FP8 = weight_form("float8_e4m3fn", blocks=BlockNumbers(64, "float32", offsets=False))
H200 = Device("sm_90a", 227 * 1024)


@pytest.mark.parametrize(("features", "rows"), [(1024, 8), (1040, 8), (2880, 24)])
def test_stages_of_sums_have_what_a_block_has(features: int, rows: int) -> None:
    config = summed_gemv_config((5, features, 128), MXFP4, 8, H200)
    assert config is not None
    assert (config.stage_rows, config.teams) == (rows, 1)


@pytest.mark.parametrize(
    ("form", "in_features", "tokens", "teams", "warps", "stage_rows"),
    [
        (MXFP4, 2880, 8, 3, 15, 16),
        (MXFP4, 4096, 1, 3, 15, 16),
        (MXFP4, 4096, 8, 1, 12, 16),  # the ring is too short for teams, and for two tiles in a stage
        (MXFP4, 7168, 1, 1, 12, 32),  # two stages per row
        (FP8, 2048, 8, 2, 8, 16),
        (FP8, 2112, 1, 1, 8, 16),  # two stages per row
        (weight_form("bfloat16"), 1024, 1, 1, 8, 16),
    ],
)
def test_teams(form: WeightForm, in_features: int, tokens: int, teams: int, warps: int, stage_rows: int) -> None:
    config = gated_gemv_config((5, 2, 768, in_features), form, tokens, H200)
    assert config is not None
    assert (config.teams, config.consumer_warps, config.stage_rows) == (teams, warps, stage_rows)
    under_way = 2 if teams > 1 else 1
    assert config.ring_bytes(in_features, tokens, H200.shared_bytes) >= (teams + under_way) * config.stage_bytes(tokens)


def test_an_odd_number_of_tiles_is_not_paired() -> None:
    config = gated_gemv_config((5, 2, 776, 7168), MXFP4, 1, H200)
    assert config is not None
    assert (config.teams, config.stage_rows) == (1, 16)
