"""Latent attention on a GPU, in the extents of DeepSeek-V2-Lite (16 heads) and V3 (128)."""

import pytest
import torch

from tests.gpu.device import GPU
from tests.gpu.latent_checks import Layer, check_latents, check_rows_alone

DTYPES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _needs_wgmma() -> None:
    if GPU.arch != "sm_90a":
        pytest.skip(f"the kernels are for sm_90a, not {GPU.arch}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("heads", [4, 16, 96, 128])
def test_one_token_of_each_sequence(heads: int, page: int, dtype: torch.dtype) -> None:
    batch = [(past, 1) for past in (0, 777, 63, 64, 1500, 5)]
    check_latents(Layer(heads, page=page), batch, dtype, split=True, machine=GPU)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [4, 16, 96, 128])
def test_drafts_of_each_sequence(heads: int, dtype: torch.dtype) -> None:
    batch = [(past, 1 + 2 * i % 5) for i, past in enumerate((0, 777, 63, 61, 64, 1500, 5, 384, 384, 384))]
    check_latents(Layer(heads), batch, dtype, split=True, machine=GPU)


@pytest.mark.parametrize("heads", [16, 128])
def test_a_long_sequence_is_shared_by_all_blocks(heads: int) -> None:
    check_latents(Layer(heads, page=64), [(20_000, 1)], torch.bfloat16, split=True, machine=GPU)
    check_latents(Layer(heads, page=64), [(20_000, 9)], torch.bfloat16, split=True, machine=GPU)


@pytest.mark.parametrize("heads", [4, 16])
def test_more_sequences_than_blocks(heads: int) -> None:
    batch = [(37 * seq % 300, 1) for seq in range(200)]
    check_latents(Layer(heads), batch, torch.bfloat16, split=True, max_rows=256, machine=GPU)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [4, 16, 128])
def test_tokens_of_any_number(heads: int, dtype: torch.dtype) -> None:
    check_latents(Layer(heads), [(61, 5), (0, 219), (500, 1), (128, 64)], dtype, split=False, machine=GPU)


def test_rows_do_not_depend_on_those_beside_them() -> None:
    check_rows_alone(Layer(16), 60, 17, torch.bfloat16, machine=GPU)
