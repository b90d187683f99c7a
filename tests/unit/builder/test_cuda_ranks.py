"""Of the ranks of a stage one is lowered; the others have its plan, and weights as if each had been lowered."""

from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir
import pytest

from tests.models import tiny_model
from tests.quantized_writer import LAYOUTS, write_quantized
from tests.unit.builder.cuda_engines import LIMITS, cuda_shape, quantized
from trtllm_lite.builder import open_checkpoint
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.cuda.engine import weights_of
from trtllm_lite.builder.cuda.planning import Lowered, lower_network
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.pipeline import fuse_into_plugins
from trtllm_lite.builder.sharding import shard
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.writer import Weight

TP_SIZE = 2
BOUNDS = BuildLimits(**LIMITS, tp_size=TP_SIZE)


def _ranks(model: ir.Model) -> list[ir.Graph]:
    return shard(fuse_into_plugins(model, AUTO_DTYPE, BOUNDS).graph, TP_SIZE)


def _lowered(graph: ir.Graph) -> Lowered:
    return lower_network(graph, "bfloat16", BOUNDS, parse_targets(["sm_90"]))


def _check(model: ir.Model) -> Lowered:
    """Returns what the first rank was lowered to."""
    first, second = _ranks(model)
    lowered, expected = _lowered(first), _lowered(second)
    found = weights_of(_ranks(model)[1], lowered)
    assert found == tuple(expected.operands.weights.values())
    assert expected.layout.tensors == lowered.layout.tensors
    other = _elements(found)
    assert other == _elements(expected.operands.weights.values())
    assert other != _elements(lowered.operands.weights.values())
    return lowered


def _elements(weights: Iterable[Weight]) -> list[bytes]:
    return [bytes(weight.load()) for weight in weights]


@pytest.mark.parametrize("qformat", ["full_prec", "int4_wo", "int8_wo", "fp8_rowwise"])
def test_weights_are_those_of_each_rank(qformat: str) -> None:
    shape = cuda_shape(qkv_bias=True, tied=False, head_dim=64, inter=256)
    _check(quantized(shape, qformat))


def test_unread_weights_of_each_rank_are_expanded(tmp_path: Path) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}
    write_quantized(tiny_model("llama", **shape, head_dim=64), tmp_path / "model", LAYOUTS["gptq 8 bits"])
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    assert _check(open_checkpoint(tmp_path / "checkpoint").model).expansions
