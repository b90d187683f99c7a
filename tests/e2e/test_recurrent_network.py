"""Networks with recurrent layers on onnxruntime against transformers in float32, at any cut into steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from tests.models import (
    HYBRID_FAMILIES,
    VOCAB_SIZE,
    round_matrices,
    save_tiny_model,
)
from tests.onnx_runner import OnnxRunner
from tests.tolerances import RECURRENT_TOLERANCES, assert_close
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.network.functions import GATED_DELTA_RULE
from trtllm_lite.network.verifier import load_network
from trtllm_lite.quantize.network import Recipe
from trtllm_lite.workflows.calibration import Calibration
from trtllm_lite.workflows.quantize import quantize_checkpoint

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "kimi_linear": ("kimi_linear", {}),
    "kimi_linear-one-group-two-shared-recurrent-last": (
        "kimi_linear",
        {
            **{
                "layer_types": ["full_attention", "linear_attention", "linear_attention"],
                "n_group": 1,
                "topk_group": 1,
            },
            **{"n_shared_experts": 2, "linear_conv_kernel_dim": 2, "linear_num_heads": 2, "linear_head_dim": 7},
            **{"q_lora_rank": 26, "norm_topk_prob": False, "mlp_layer_types": ["sparse"] * 3},
        },
    ),
    "kimi_linear-recurrent-alone": ("kimi_linear", {"layer_types": ["linear_attention"] * 3}),
    "lfm2": ("lfm2", {}),
    "lfm2-biased-untied-wide": ("lfm2", {"conv_bias": True, "conv_L_cache": 4, "tie_word_embeddings": False}),
    "lfm2-by-numbers": ("lfm2", {"layer_types": None, "full_attn_idxs": [0, 2], "block_auto_adjust_ff_dim": False}),
    "lfm2_moe": ("lfm2_moe", {}),
    "lfm2_moe-plain-scores-all-sparse": (
        "lfm2_moe",
        {"use_expert_bias": False, "norm_topk_prob": False, "num_dense_layers": 0, "conv_L_cache": 2},
    ),
    "bamba": ("bamba", {}),
    "bamba-one-group-biased-tied": (
        "bamba",
        {
            **{"mamba_n_groups": 1, "mamba_d_conv": 2, "mamba_proj_bias": True, "attention_bias": True},
            **{"mlp_bias": True, "tie_word_embeddings": True, "attn_layer_indices": [0, 2]},
        },
    ),
    "bamba-bounded-steps": (
        "bamba",
        {"mamba_n_groups": 6, "time_step_limit": [0.5, 1.5], "mamba_conv_bias": False, "mamba_d_head": "auto"},
    ),
    "bamba-recurrent-alone": ("bamba", {"attn_layer_indices": None}),
    "falcon_h1": ("falcon_h1", {}),
    "falcon_h1-norm-first-biased": (
        "falcon_h1",
        {
            **{"mamba_rms_norm": True, "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True},
            **{"projectors_bias": True, "mamba_n_groups": 1, "mamba_d_conv": 2},
        },
    ),
    "falcon_h1-gate-first-expanded": (
        "falcon_h1",
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_d_ssm": None, "mamba_n_groups": 3},
    ),
    "falcon_h1-without-factors": (
        "falcon_h1",
        {
            **{f"{name}_multiplier": 1.0 for name in ("ssm_in", "ssm_out", "attention_in", "attention_out", "key")},
            **{"ssm_multipliers": None, "mlp_multipliers": None, "tie_word_embeddings": True},
        },
    ),
    "granitemoehybrid": ("granitemoehybrid", {}),
    "granitemoehybrid-dense-rope": ("granitemoehybrid", {"num_local_experts": 0, "position_embedding_type": "rope"}),
    "granitemoehybrid-all-attention": (
        "granitemoehybrid",
        {
            **{"num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"},
            "layer_types": ["attention"] * 3,
        },
    ),
    "granitemoehybrid-odd-heads-biased-tied": (
        "granitemoehybrid",
        {
            **{"mamba_n_heads": 5, "mamba_d_head": 24, "mamba_n_groups": 1, "mamba_proj_bias": True},
            **{"attention_bias": True, "tie_word_embeddings": True, "layer_types": None},
        },
    ),
    "nemotron_h": ("nemotron_h", {}),
    "nemotron_h-by-pattern-dense-biased": (
        "nemotron_h",
        {
            **{"layers_block_type": None, "hybrid_override_pattern": "-M*M-", "mlp_bias": True, "use_bias": True},
            **{"mamba_num_heads": 5, "n_groups": 1},
        },
    ),
    "nemotron_h-one-group-wide-experts": (
        "nemotron_h",
        {
            **{"moe_latent_size": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
            **{"routed_scaling_factor": 2.5, "use_conv_bias": False, "mamba_head_dim": 7},
        },
    ),
    "qwen3_next": ("qwen3_next", {}),
    "qwen3_next-by-interval": ("qwen3_next", {"layer_types": None, "num_hidden_layers": 5, "mlp_only_layers": [1]}),
    "qwen3_next-one-value-head-each-biased-tied": (
        "qwen3_next",
        {
            **{"linear_num_key_heads": 3, "linear_num_value_heads": 3, "attention_bias": True, "norm_topk_prob": False},
            **{"tie_word_embeddings": True, "decoder_sparse_step": 2, "linear_conv_kernel_dim": 2},
        },
    ),
    "qwen3_next-recurrent-alone": ("qwen3_next", {"layer_types": ["linear_attention"] * 3}),
    "qwen3_5": ("qwen3_5", {}),
    "qwen3_5-by-interval-tied": (
        "qwen3_5",
        {"layer_types": None, "num_hidden_layers": 5, "full_attention_interval": 2, "tie_word_embeddings": True},
    ),
    "qwen3_5-one-value-head-each-biased": (
        "qwen3_5",
        {
            **{"linear_num_key_heads": 3, "linear_num_value_heads": 3, "attention_bias": True},
            **{"linear_conv_kernel_dim": 2, "mamba_ssm_dtype": "bfloat16", "mtp_num_hidden_layers": 1},
        },
    ),
    "qwen3_5-recurrent-alone": ("qwen3_5", {"layer_types": ["linear_attention"] * 3, "linear_num_value_heads": 10}),
    "qwen3_5_moe": ("qwen3_5_moe", {}),
    "qwen3_5_moe-one-expert-odd-heads": (
        "qwen3_5_moe",
        {"num_experts_per_tok": 1, "linear_num_key_heads": 3, "linear_num_value_heads": 9, "linear_value_head_dim": 7},
    ),
}
# Lengths around the chunks of 64 tokens in which transformers computes recurrent layers, and one of several chunks.
LENGTHS = (1, 63, 64, 65, 300)
OFFSETS = (1, 2, 3, 4, 63, 64, 65, 127, 128)
LONGEST = max(LENGTHS)
LEAST_GAP = 5e-5  # between the scores of the last expert that a token has and of the next one; rounding is below 1e-5


@pytest.fixture(scope="module", params=HYBRID_FAMILIES)
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    """A tiny model, and the checkpoint made of it."""
    directory = tmp_path_factory.mktemp(request.param)
    model = save_tiny_model(request.param, directory / "model")
    convert_checkpoint(str(directory / "model"), directory / "checkpoint")
    return model, directory / "checkpoint"


def _sequences(model: PreTrainedModel, batch: int, length: int) -> NDArray[np.int64]:
    """Random tokens, none of which is so near a tie between experts that rounding would choose others."""
    rng = np.random.default_rng([batch, length])
    while True:
        sequences = rng.integers(0, VOCAB_SIZE, (batch, length))
        if _least_gap(model, sequences) >= LEAST_GAP:
            return sequences


def _least_gap(model: PreTrainedModel, sequences: NDArray[np.int64]) -> float:
    """The least gap of any token and layer; infinity for a model without experts."""
    top_k = getattr(model.config, "num_experts_per_tok", 0)
    if not top_k:
        return np.inf
    with torch.no_grad():
        scores = model.model(torch.tensor(sequences), use_cache=False, output_router_logits=True).router_logits
    if not scores:
        return np.inf
    corrections = [
        buffer for name, buffer in model.named_buffers() if name.endswith(("expert_bias", "correction_bias"))
    ]
    if corrections:  # of sigmoids; without corrections, experts are chosen by the order of scores themselves
        scores = [of_layer.sigmoid() + by for of_layer, by in zip(scores, corrections, strict=True)]
    groups, top_groups = getattr(model.config, "n_group", 1), getattr(model.config, "topk_group", 1)
    if groups == 1:
        return min(_gap(of_layer, top_k) for of_layer in scores)
    gaps = []
    for of_layer in scores:
        by_group = of_layer.unflatten(-1, (groups, -1))
        totals = by_group.topk(2).values.sum(-1)
        are_left = totals >= totals.topk(top_groups).values[:, -1:]
        left = by_group.where(are_left[..., None], -1e9).flatten(1)
        gaps += [_gap(totals, top_groups), _gap(left, top_k)]
    return min(gaps)


def _gap(scores: torch.Tensor, count: int) -> float:
    """How much the last of the ``count`` best of each row is better than the next one; the least of all rows."""
    best = scores.sort(descending=True).values
    return float((best[:, count - 1] - best[:, count]).min())


def _expected(model: PreTrainedModel, sequences: NDArray[np.int64]) -> NDArray[np.float32]:
    """The logits of all positions, from one pass."""
    with torch.no_grad():
        return model(torch.tensor(sequences), use_cache=False).logits.float().numpy()


def _check_in_steps(model: PreTrainedModel, checkpoint: Path, length: int, offset: int, dtype: str = "float32") -> None:
    """A prompt of ``offset`` tokens and then the others in one step must give the logits of one pass."""
    sequences = _sequences(model, 2, length)
    expected, runner = _expected(model, sequences), OnnxRunner(checkpoint, 2, length + 3)
    parts = [part for part in (sequences[:, :offset], sequences[:, offset:]) if part.size]
    steps = [np.stack(runner.step(list(part))) for part in parts]
    assert_close(np.concatenate(steps, 1), expected, dtype, f"{length} tokens cut at {offset}", RECURRENT_TOLERANCES)


@pytest.mark.each_value
@pytest.mark.parametrize("length", LENGTHS)
def test_logits_of_one_step_equal_transformers(converted: tuple[PreTrainedModel, Path], length: int) -> None:
    _check_in_steps(*converted, length, length)


@pytest.mark.each_value
@pytest.mark.parametrize("offset", OFFSETS)
def test_states_are_handed_over(converted: tuple[PreTrainedModel, Path], offset: int) -> None:
    _check_in_steps(*converted, LONGEST // 2, offset)


def test_tokens_one_by_one_equal_transformers(converted: tuple[PreTrainedModel, Path]) -> None:
    model, checkpoint = converted
    sequences = _sequences(model, 2, 70)
    runner = OnnxRunner(checkpoint, 2, 73)
    steps = [np.stack(runner.step(list(sequences[:, token : token + 1]))) for token in range(70)]
    assert_close(np.concatenate(steps, 1), _expected(model, sequences), table=RECURRENT_TOLERANCES)


def test_sequences_of_a_batch_may_be_at_different_positions(converted: tuple[PreTrainedModel, Path]) -> None:
    model, checkpoint = converted
    first, second = _sequences(model, 1, 9), _sequences(model, 1, 80)
    both = OnnxRunner(checkpoint, 1, 83), OnnxRunner(checkpoint, 1, 83)
    for runner, sequence in zip(both, (first, second), strict=True):
        runner.step([sequence[0, :-5].tolist()])
    found = both[0].joined(both[1]).step([each[0, -5:].tolist() for each in (first, second)])
    for logits, sequence in zip(found, (first, second), strict=True):
        assert_close(logits, _expected(model, sequence)[0, -5:], table=RECURRENT_TOLERANCES)


@pytest.mark.parametrize("case", CASES)
def test_variations_equal_transformers(case: str, tmp_path: Path) -> None:
    family, overrides = CASES[case]
    model = save_tiny_model(family, tmp_path / "model", **overrides)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    _check_in_steps(model, tmp_path / "checkpoint", 21, 10)


def test_every_hybrid_family_has_variations() -> None:
    assert {family for family, _ in CASES.values()} == set(HYBRID_FAMILIES)


@pytest.mark.each_value
@pytest.mark.parametrize("family", HYBRID_FAMILIES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_storage_is_the_float32_model_of_the_rounded_weights(family: str, dtype: str, tmp_path: Path) -> None:
    model = save_tiny_model(family, tmp_path / "model")
    assert convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype).config.dtype == dtype
    _check_in_steps(round_matrices(model, dtype), tmp_path / "checkpoint", 21, 10, dtype)


def test_quantized_networks_keep_their_functions(tmp_path: Path) -> None:
    """The numbers of quantized products are compared for other families; here, steps must hand over their states."""
    model = save_tiny_model("qwen3_next", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    recipe = Recipe("int8_wo")
    quantize_checkpoint(tmp_path / "checkpoint", tmp_path / "quantized", recipe, Calibration(), lambda *_: None)
    assert [name for _, name, _ in load_network(tmp_path / "quantized").functions] == [GATED_DELTA_RULE]
    sequences = _sequences(model, 2, 21).tolist()
    once, twice = (OnnxRunner(tmp_path / "quantized", 2, 24) for _ in range(2))
    twice.step([sequence[:10] for sequence in sequences])
    found = twice.step([sequence[10:] for sequence in sequences])
    for logits, expected in zip(found, once.step(sequences), strict=True):
        assert_close(logits, expected[10:], table=RECURRENT_TOLERANCES)
