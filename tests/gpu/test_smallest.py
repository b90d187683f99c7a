"""One small odd case of every kernel, for compute-sanitizer (scripts/test_gpu.sh sanitize)."""

import torch

from tests.gpu import (
    test_decode_attention,
    test_decode_step,
    test_linear,
    test_low_rank,
    test_prefill_attention,
    test_qkv_linear,
    test_row_kernels,
    test_sample,
)
from tests.gpu.device import GPU
from tests.gpu.expert_checks import Mixture, check_experts
from tests.gpu.quantized_checks import check_tiled
from tests.gpu.state_checks import check_state_steps
from tests.gpu.weights import Form
from tests.state_batch import causal_conv, gated_delta_rule, mamba2
from trtllm_lite.plugins.cuda.tiles import TileConfig

BF16 = torch.bfloat16
STEPS = [[(0, 5), (1, 20)], [(0, 33), (1, 1)], [(0, 2)]]  # of sequences with states


def test_linear_kernels() -> None:
    test_linear.test_linear(49, 576, 8, 7, BF16)
    test_linear.test_linear(49, 576, 1, 1, BF16)
    test_linear.test_norm_bias_residual_and_float_output(49, 576, 16)
    test_linear.test_gated_linear(1000, 2048, False, 4, 3, BF16)
    test_linear.test_every_configuration_gives_the_same_result(test_linear.CONFIGS[3], 5)
    test_qkv_linear.test_qkv_linear(test_qkv_linear.SMOL, 4, 3, BF16)


def test_kernels_of_adapters() -> None:
    test_low_rank.test_mixed_batches(17, "odd", BF16, residual=True)
    test_low_rank.test_mixed_batches(3, "odd", torch.float16, residual=False)


def test_attention_kernels() -> None:
    test_decode_attention.test_lengths([1, 33, 700, 64], 32, BF16)
    test_decode_attention.test_window(17)
    test_decode_attention.test_from_a_later_position_on(1, 0)
    test_decode_attention.test_pairs_that_stay_whole(9, 3, 64, 130)
    test_decode_attention.test_drafts([1, 33, 700, 64], 5, BF16)
    test_prefill_attention.test_batches([(0, 17), (31, 2), (100, 129)], 32, BF16, wgmma=False)


def test_prefill_attention_with_wgmma() -> None:
    test_prefill_attention.test_batches([(0, 17), (31, 2), (300, 129)], 32, BF16, wgmma=True)


def test_keys_of_16_bits_beside_values_of_bytes() -> None:
    e4m3 = torch.float8_e4m3fn
    test_decode_attention.test_caches_of_bytes(64, e4m3, True)
    test_prefill_attention.test_caches_of_bytes_that_were_widened(64, e4m3, True)


def test_kernels_of_rows() -> None:
    test_row_kernels.test_embedding(3, 64, BF16, 8.0)
    test_row_kernels.test_gather_rows(3, 64)
    test_row_kernels.test_gate_mul(3, 1000, "silu", BF16)
    test_row_kernels.test_rms_norm(3, 576, 128, True, BF16)
    test_row_kernels.test_cache_slots(32, 6)
    test_row_kernels.test_paged_rows(64, 1032, 2)
    test_row_kernels.test_rotary_table(64)
    test_row_kernels.test_rope_cache(9, 3, 64, 17, True)


def test_draws() -> None:
    test_sample.test_draws(1001, 3)


def test_borders_and_masks() -> None:
    test_sample.test_ties_at_the_borders(1000)
    test_sample.test_masks(1001, 8, 8, 1)


def test_tiles_of_which_rows_are_missing() -> None:
    for config in (TileConfig(128, 64, 1, 2, 2, ""), TileConfig(128, 64, 2, 1, 1, "")):
        check_tiled(Form("bfloat16"), config, 200, 512, 40, 256, BF16, residual=True)


def test_states() -> None:
    for operator in (gated_delta_rule(1, 2, 32, 48), mamba2(2, 1, 32, 16), causal_conv(24, 4)):
        for decode in (False, True):
            check_state_steps(operator, [40, 23], STEPS, BF16, GPU, decode=decode)


def test_states_that_blocks_walk_through_and_chunks() -> None:
    """In sizes of models, because smaller ones have neither."""
    for operator in (gated_delta_rule(1, 2, 128, 128), mamba2(2, 1, 128, 64)):
        for decode in (False, True):
            check_state_steps(operator, [40, 23], STEPS, BF16, GPU, decode=decode, max_decode_seqs=1 << 10)


def test_experts() -> None:
    for rows in (1, 5):
        check_experts(Mixture(16, 4, 512, 256, rows), rows, BF16, gemv=True, machine=GPU)
    check_experts(Mixture(16, 4, 512, 256, 64), 37, BF16, gemv=False, machine=GPU)


def test_chain() -> None:
    test_decode_step.test_programmatic_launches_change_nothing(3, 63, test_decode_step.StepOptions())
