"""Latent attention, without a GPU."""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.latent_checks import Layer, Step, check_latents, check_rows_alone

# Values decide how kernels are compiled; tests/gpu combine them.
pytestmark = pytest.mark.each_value

SMALL = {"latent_dim": 128, "plain_dim": 32, "value_dim": 48}
ODD = [(0, 1), (200, 1), (63, 1)]


@pytest.mark.parametrize(
    ("heads", "page", "dtype"),
    [(4, 16, torch.bfloat16), (16, 64, torch.float16), (96, 128, torch.bfloat16), (128, 32, torch.bfloat16)],
)
def test_one_token_of_each_sequence(heads: int, page: int, dtype: torch.dtype) -> None:
    """Three blocks share the tiles of sequences of all lengths, so that some items are split."""
    layer = Layer(heads, page=page, **SMALL)
    check_latents(layer, ODD, dtype, split=True, machine=Emulator(num_sms=3))


@pytest.mark.parametrize(
    ("heads", "page", "dtype"),
    [(4, 16, torch.bfloat16), (16, 64, torch.float16), (96, 128, torch.bfloat16), (128, 32, torch.bfloat16)],
)
def test_drafts_of_each_sequence(heads: int, page: int, dtype: torch.dtype) -> None:
    """Four heads attend for all tokens of a sequence at once, 16 for four, and more for one."""
    batch = [(61, 5), (200, 3), (0, 5), (63, 1), (125, 4)]
    check_latents(Layer(heads, page=page, **SMALL), batch, dtype, split=True, machine=Emulator(num_sms=3))


def test_many_blocks_share_a_sequence() -> None:
    """There are 40 blocks, more than a warp has lanes; each has a tile of 64 tokens."""
    layer = Layer(4, page=64, **SMALL)
    check_latents(layer, [(40 * 64 - 5, 1)], torch.bfloat16, split=True, machine=Emulator(num_sms=40))


@pytest.mark.parametrize(
    ("heads", "page", "dtype"), [(4, 16, torch.bfloat16), (16, 64, torch.float16), (128, 32, torch.bfloat16)]
)
def test_tokens_of_any_number(heads: int, page: int, dtype: torch.dtype) -> None:
    layer, batch = Layer(heads, page=page, **SMALL), [(61, 5), (0, 19), (128, 1)]
    check_latents(layer, batch, dtype, split=False, max_rows=64, machine=Emulator())


def test_extents_of_deepseek() -> None:
    """The extents are those of DeepSeek-V2-Lite; tokens fill two cache blocks."""
    check_latents(Layer(16), [(40, 1), (3, 1)], torch.bfloat16, split=True, machine=Emulator(num_sms=2))


def test_what_is_expected_is_what_the_reference_computes() -> None:
    step = Step(Layer(3, page=16, **SMALL), [(37, 5), (0, 18), (16, 1)], torch.bfloat16, "cpu")
    for found, expected in zip(step.expected(), step.referred(), strict=True):
        torch.testing.assert_close(found.float(), expected.float(), equal_nan=True)


def test_rows_do_not_depend_on_those_beside_them() -> None:
    check_rows_alone(Layer(16, page=16, **SMALL), 60, 7, torch.bfloat16, machine=Emulator())
