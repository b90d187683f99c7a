"""BlockManager: invariants under any sequence of calls, and what it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_lite._core import BlockManager
from trtllm_lite.errors import LimitError

NUM_BLOCKS, TOKENS_PER_BLOCK = 12, 4
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 5), st.integers(1, 60)),
        st.tuples(st.just("release"), st.integers(0, 5), st.just(0)),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_agrees_with_a_model(operations: list[tuple[str, int, int]]) -> None:
    """The model is the number of blocks of each sequence; tables never share a block and only grow at their end."""
    manager = BlockManager(NUM_BLOCKS, TOKENS_PER_BLOCK)
    tables: dict[int, list[int]] = {}
    for operation, seq_id, num_tokens in operations:
        free = NUM_BLOCKS - sum(map(len, tables.values()))
        held = tables.get(seq_id, [])
        if operation == "release":
            if held:
                manager.release(seq_id)
                del tables[seq_id]
            else:
                with pytest.raises(LimitError, match=f"sequence {seq_id}"):
                    manager.release(seq_id)
        elif -(-num_tokens // TOKENS_PER_BLOCK) - len(held) > free:
            with pytest.raises(LimitError, match="more blocks"):
                manager.reserve(seq_id, num_tokens)
        else:
            manager.reserve(seq_id, num_tokens)
            table = manager.block_table(seq_id)
            assert len(table) == max(len(held), -(-num_tokens // TOKENS_PER_BLOCK))
            assert table[: len(held)] == held
            tables[seq_id] = table
        manager.check_integrity()
        assert {seq: manager.block_table(seq) for seq in tables} == tables
        used = [block for table in tables.values() for block in table]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(NUM_BLOCKS))
        assert manager.num_free == NUM_BLOCKS - len(used)


def test_failed_reserve_leaves_no_trace() -> None:
    manager = BlockManager(2, 16)
    with pytest.raises(LimitError, match=r"needs 3 more blocks of 16 tokens, found 2 free of 2; release"):
        manager.reserve(7, 33)
    assert manager.num_free == 2
    with pytest.raises(LimitError, match="sequence 7"):
        manager.block_table(7)


@pytest.mark.parametrize("arguments", [(0, 16), (16, 0), (-1, 16), (2**40, 16)])
def test_refuses_absurd_sizes(arguments: tuple[int, int]) -> None:
    with pytest.raises(LimitError, match="expected 1 to"):
        BlockManager(*arguments)


@pytest.mark.parametrize("num_tokens", [0, -5, 2**62])
def test_refuses_absurd_lengths(num_tokens: int) -> None:
    with pytest.raises(LimitError, match="num_tokens"):
        BlockManager(2, 16).reserve(0, num_tokens)
