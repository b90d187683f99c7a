"""The emulator finds what it was made to find: races, deadlocks, and behaviour that the hardware leaves undefined."""

import itertools
from pathlib import Path

import pytest
import torch

from tests.emulated.cards import EmulatedCards
from tests.emulated.compiler import EmulationError
from tests.emulated.emulator import EmulatedKernel, Emulator
from tests.emulated.ptx import translate

KERNELS = Path(__file__).parent / "kernels"
TILES, WORDS, SHARED_BYTES = 8, 32, 144
MISTAKES = ("none", "no wait", "early release", "wrong parity", "extra arrival", "too far", "outside", "divergence")
SEEDS = 20


def _kernel(mistake: str, machine: Emulator) -> EmulatedKernel:
    defines: dict[str, int | str] = {"TL_MISTAKE": MISTAKES.index(mistake) if mistake in MISTAKES else len(MISTAKES)}
    return machine.kernel(str(KERNELS / "mistakes.cuh"), "mistakes", 2 * WORDS, SHARED_BYTES, defines)


def _run(mistake: str, seed: int) -> bool:
    """Run the kernel; returns whether the result is right."""
    x = torch.arange(TILES * WORDS, dtype=torch.int32)
    y = torch.full_like(x, -1)
    _kernel(mistake, Emulator(seed=seed))(y, x, grid=1)
    return torch.equal(y, x + 1)


def test_no_mistake() -> None:
    assert all(_run("none", seed) for seed in range(SEEDS))


@pytest.mark.parametrize("mistake", ["no wait", "early release"])
def test_races_show(mistake: str) -> None:
    """A race shows under many schedules, but not under every one."""
    wrong = 0
    for seed in range(SEEDS):
        try:
            wrong += not _run(mistake, seed)
        except EmulationError:
            wrong += 1
    assert wrong > SEEDS // 4


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("wrong parity", r"deadlock:\n  block \(0, 0\), warp 0: 32 lanes wait at mbarrier"),
        ("extra arrival", "one arrival more than the 1 that the mbarrier"),
        ("too far", "bulk copy: 128 bytes at .* are not in one of the kernel's tensors"),
        ("outside", "bulk copy: 128 bytes at 0x1400 are outside of the 144 bytes of shared memory"),
        ("divergence", r"while other lanes of the warp are at|deadlock"),
        ("no barrier", "there is no mbarrier at"),
    ],
)
def test_errors_name_the_cause(mistake: str, message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        _run(mistake, 0)


def test_launches_of_a_card_run_in_order() -> None:
    """Each launch adds 1 to the result of the launch before."""
    cards = EmulatedCards(2)
    found = torch.zeros(2, 9, TILES * WORDS, dtype=torch.int32)
    for number in (0, 1):
        with cards.on(number):
            kernel = _kernel("none", cards)
            for x, y in itertools.pairwise(found[number]):
                kernel(y, x, grid=1)
    cards.synchronize()
    assert torch.equal(found, torch.arange(9, dtype=torch.int32)[:, None].expand_as(found))


def test_errors_name_the_card() -> None:
    cards, x = EmulatedCards(2), torch.zeros(TILES * WORDS, dtype=torch.int32)
    with cards.on(1):
        _kernel("wrong parity", cards)(torch.zeros_like(x), x, grid=1)
    with pytest.raises(EmulationError, match=r"deadlock:\n  stream 1, block \(0, 0\), warp 0: 32 lanes wait"):
        cards.synchronize()


def _neighbours(seed: int, *, stays: bool, grid: int = 8) -> list[int]:
    y = torch.zeros(grid, dtype=torch.int32)
    defines: dict[str, int | str] = {"TL_BLOCKS": 4, "TL_STAYS": int(stays)}
    kernel = Emulator(seed=seed).kernel(str(KERNELS / "neighbours.cuh"), "neighbours", 64, 128, defines)
    kernel(y, grid=grid)
    return y.tolist()


def test_clusters() -> None:
    for seed in range(SEEDS):
        assert _neighbours(seed, stays=True) == [100 + 1001 * block for block in (1, 2, 3, 0, 5, 6, 7, 4)]


def test_shared_memory_ends_with_its_block() -> None:
    with pytest.raises(EmulationError, match="of a block that has ended"):
        [_neighbours(seed, stays=False) for seed in range(SEEDS)]


def test_grids_are_whole_clusters() -> None:
    with pytest.raises(EmulationError, match="a grid of 6 blocks in clusters of 4"):
        _neighbours(0, stays=True, grid=6)


def test_asm_becomes_calls() -> None:
    ptx = r"{\n.reg .pred p;\nretry:\na.b::c p, [%1], {%0, %0};\n@!p bra retry;\n}"
    assert translate(f'asm volatile("{ptx}" : "=r"(x) : "r"(y));') == (
        "{ __label__ retry; auto& _0 = emulated::ptx::written<emulated::u32>(x); "
        "const emulated::u32 _1 = (emulated::u32)(y); { bool p{}; retry:; "
        "emulated::ptx::a_b_c(p, _1, emulated::ptx::group(_0, _0)); if (!p) goto retry; } };"
    )


@pytest.mark.parametrize("asm", ['asm("x %0;" : "=q"(x));', 'asm("x %0;" : x);'])
def test_unknown_asm_is_refused(asm: str) -> None:
    with pytest.raises(ValueError, match=r"asm operand|without a constraint"):
        translate(asm)
