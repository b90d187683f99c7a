"""Programs of ranks: the first rank of a stage is lowered, the others share its plan; products store rows remotely."""

from collections.abc import Iterable
from dataclasses import replace
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
from trtllm_lite.common.vocabulary import DECODER
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.writer import Weight
from trtllm_lite.plugins.cuda.ranks import BARRIER_BLOCKS
from trtllm_lite.plugins.launch import Launch

TP_SIZE = 2
BOUNDS = BuildLimits(**LIMITS, tp_size=TP_SIZE)
LARGE = replace(BOUNDS, max_batch_size=64, max_num_tokens=2048)
HERE, ON_OWNERS, ON_FIRST_RANK = 0, 1, 2  # TL_ROWS_ON


def _ranks(model: ir.Model) -> list[ir.Graph]:
    return shard(fuse_into_plugins(model, AUTO_DTYPE, BOUNDS).graph, TP_SIZE)


def _lowered(graph: ir.Graph, limits: BuildLimits = BOUNDS, target: str = "sm_90") -> Lowered:
    return lower_network(graph, DECODER, "bfloat16", limits, parse_targets([target]))


def _check(model: ir.Model) -> Lowered:
    """Check the plans of all ranks; returns the lowered program of the first."""
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
    write_quantized(tiny_model("llama", **shape, head_dim=64), tmp_path / "model", LAYOUTS["compressed-tensors nvfp4"])
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    assert _check(open_checkpoint(tmp_path / "checkpoint").model).expansions


def _launches(lowered: Lowered, program: str, kernel: str, macro: str) -> list[object]:
    """The values of a macro in the launches of a kernel."""
    (found,) = (found for found in lowered.programs if found.name == program)
    launches = [command for command in found.commands if isinstance(command, Launch) and command.kernel.name == kernel]
    return [dict(launch.kernel.defines)[macro] for launch in launches]


def test_rows_of_large_steps_are_stored_on_their_owners() -> None:
    lowered = _lowered(_ranks(quantized(cuda_shape(tied=False), "full_prec"))[0], LARGE)
    stored = [ON_OWNERS] * 2 + [ON_OWNERS] * 2 + [ON_FIRST_RANK]  # the products of two layers, and the logits
    assert [where for where in _launches(lowered, "mixed", "linear_tiled", "TL_ROWS_ON") if where != HERE] == stored
    # The embedding is read locally. The owners of rows read the sums, except before the last layer, which gathers some
    # rows.
    assert _launches(lowered, "mixed", "all_reduce_pull", "TL_STORED") == [0, 1, 1, 1, 1]
    assert _launches(lowered, "mixed", "all_reduce_pull", "TL_OWNED") == [0, 1, 1, 1, 1]
    assert _launches(lowered, "mixed", "all_reduce_pull", "TL_SUM_EVERYWHERE") == [0, 0, 1, 0, 0]
    assert _launches(lowered, "mixed", "rows_are_there", "TL_BARRIER_BLOCKS") == [BARRIER_BLOCKS]


def test_rows_of_few_tokens_are_sent_by_all_reduce() -> None:
    lowered = _lowered(_ranks(quantized(cuda_shape(tied=False), "full_prec"))[0])
    for program in ("decode_2", "mixed"):
        assert len(_launches(lowered, program, "all_reduce_push", "TL_INBOX_ROWS")) == 5
    assert _launches(lowered, "decode_2", "linear", "TL_ROWS_ON") == [HERE] * 4 + [ON_FIRST_RANK]


def test_other_targets_read_rows_where_they_are() -> None:
    """On sm_80, products with many rows use cuBLASLt, which stores rows locally."""
    model = quantized(cuda_shape(tied=False), "full_prec")
    lowered = _lowered(_ranks(model)[0], LARGE, "sm_80")
    assert _launches(lowered, "mixed", "all_reduce_pull", "TL_STORED") == [0] * 5
    assert _launches(lowered, "mixed", "all_gather", "TL_BARRIER_BLOCKS") == [BARRIER_BLOCKS]
    assert _launches(lowered, "decode_2", "linear", "TL_ROWS_ON")[-1] == ON_FIRST_RANK
