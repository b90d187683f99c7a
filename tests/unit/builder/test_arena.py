from hypothesis import given
from hypothesis import strategies as st

from trtllm_lite.builder.arena import Lifetime, assign_offsets
from trtllm_lite.common.vocabulary import ALIGNMENT
from trtllm_lite.engine.format import align


@st.composite
def _lifetimes(draw: st.DrawFn) -> Lifetime:
    first = draw(st.integers(0, 30))
    return Lifetime(draw(st.integers(1, 5000)), first, first + draw(st.integers(0, 8)))


@given(st.lists(_lifetimes(), max_size=40))
def test_live_tensors_never_overlap_and_lie_inside_the_arena(lifetimes: list[Lifetime]) -> None:
    offsets, arena_bytes = assign_offsets(lifetimes)
    for i, (a, offset) in enumerate(zip(lifetimes, offsets, strict=True)):
        assert offset % ALIGNMENT == 0
        assert 0 <= offset <= offset + a.num_bytes <= arena_bytes
        for b, other in zip(lifetimes[i + 1 :], offsets[i + 1 :], strict=True):
            if any(step in range(b.first, b.last + 1) for step in range(a.first, a.last + 1)):
                assert offset + a.num_bytes <= other or other + b.num_bytes <= offset


@given(st.lists(_lifetimes(), min_size=1, max_size=40))
def test_the_arena_is_between_the_peak_and_the_sum(lifetimes: list[Lifetime]) -> None:
    _, arena_bytes = assign_offsets(lifetimes)
    steps = range(max(lifetime.last for lifetime in lifetimes) + 1)
    live = [sum(align(t.num_bytes) for t in lifetimes if t.first <= step <= t.last) for step in steps]
    assert max(live) <= arena_bytes <= sum(align(lifetime.num_bytes) for lifetime in lifetimes)


def test_storage_is_reused_once_a_tensor_is_dead() -> None:
    chain = [Lifetime(1000, step, step + 1) for step in range(10)]
    offsets, arena_bytes = assign_offsets(chain)
    assert arena_bytes == 2 * align(1000)
    assert set(offsets) == {0, align(1000)}


def test_the_tightest_gap_is_taken() -> None:
    # Two gaps open at step 2, of 1024 bytes and of 256; the last tensor fits into the small one.
    placed = [Lifetime(2048, 0, 3), Lifetime(1024, 0, 1), Lifetime(512, 0, 3), Lifetime(256, 0, 1), Lifetime(128, 0, 3)]
    offsets, arena_bytes = assign_offsets([*placed, Lifetime(64, 2, 3)])
    assert offsets == [0, 2048, 3072, 3584, 3840, 3584]
    assert arena_bytes == 3968


def test_nothing_needs_no_arena() -> None:
    assert assign_offsets([]) == ([], 0)
