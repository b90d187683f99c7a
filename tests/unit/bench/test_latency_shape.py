"""Which batches fit into an engine before they are measured."""

import pytest

from trtllm_lite.bench.latency_shape import LatencyShape
from trtllm_lite.errors import LimitError
from trtllm_lite.runtime.session.limits import RunnerLimits

BLOCKS, WINDOW = 16, 32


def limits(num_blocks: int, windows: tuple[int, ...]) -> RunnerLimits:
    groups = tuple(("window" if window else "full", window, 1) for window in windows)
    return RunnerLimits(8, 64, 256, 64, 256, 1, num_blocks, 0, BLOCKS, groups)


@pytest.mark.parametrize("windows", [(0,), (0, WINDOW)])
def test_a_pool_that_is_made_for_a_batch_holds_it(windows: tuple[int, ...]) -> None:
    """Sequences whose context is computed in several steps free the blocks behind their windows for other sequences."""
    shape = LatencyShape(input_len=64, output_len=192, batch_size=8)
    needed = limits(1, windows).blocks_for_batch(8, shape.seq_len)
    assert needed <= 8 * limits(1, windows).blocks_for(shape.seq_len)
    shape.check_fits(limits(needed, windows))
    with pytest.raises(LimitError, match=f"batch_size 8 of 256 tokens needs {needed} KV cache blocks of 16 tokens"):
        shape.check_fits(limits(needed - 1, windows))
