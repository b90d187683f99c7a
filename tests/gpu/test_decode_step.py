"""Overlapping launches of a chain must compute the same as consecutive launches."""

import pytest
import torch

from tests.gpu.decode_step import DecodeStep, StepOptions
from tests.gpu.kernels import GemvConfig, ModelShape

SHAPE = ModelShape(1024, 2816, 16, 4, 64, 5000)
SMALL = GemvConfig(stage_k=512, shared_bytes=116 * 1024)  # fits on an SM beside a small attention
BESIDE = {"warps": 4, "shared_bytes": 72 * 1024}


@pytest.mark.parametrize(
    "options",
    [StepOptions(), StepOptions(configs={"qkv": SMALL, "o": SMALL}, attention=BESIDE)],
    ids=["whole SM", "beside attention"],
)
@pytest.mark.parametrize(("batch", "past"), [(1, 0), (1, 300), (3, 63), (8, 1000)])
def test_programmatic_launches_change_nothing(batch: int, past: int, options: StepOptions) -> None:
    step = DecodeStep(SHAPE, 6, batch, past, options)
    first = step.last_tokens.clone()
    step.run(programmatic=False)
    expected, chosen = step.logits.clone(), step.tokens.clone()
    assert torch.isfinite(expected).all()
    assert torch.equal(chosen, expected.argmax(-1).int())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    for _ in range(20):
        step.last_tokens.copy_(first)
        step.logits.fill_(float("nan"))
        graph.replay()
        assert torch.equal(step.logits, expected)
        assert torch.equal(step.tokens, chosen)
