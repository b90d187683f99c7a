"""Fuses calls of Mamba-2's state space model (network/mamba2.py) behind a convolution into Mamba2."""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, nodes_of, site
from trtllm_lite.builder.passes.attention_pattern import MismatchError, match_unpacked
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.recurrent_pattern import extent_of, insert_recurrent, layout_of, match_state
from trtllm_lite.builder.passes.remove_padding import PADDED_ROWS
from trtllm_lite.network.functions import FUNCTIONS
from trtllm_lite.network.functions import MAMBA2 as FUNCTION

_ROWS, _OF_HEADS = ("xbc", "dt"), ("a_log", "dt_bias", "d")


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for call in nodes_of(graph, FUNCTION, FUNCTIONS):
        try:
            rows = [match_unpacked(call.inputs[number], name) for number, name in enumerate(_ROWS)]
            state = match_state("recurrent_state", call.inputs[5], call.outputs[1])
        except MismatchError as mismatch:
            yield Decision(site(call), False, str(mismatch))
            continue
        operands = dict(zip((*_ROWS, *_OF_HEADS), [*rows, *call.inputs[2:5]], strict=True))
        attributes = {name: attribute(call, name) for name in ("num_groups", "min_step", "max_step")}
        layout = layout_of(state, decays=1)
        form = (extent_of(state.past, 1), layout.size)
        insert_recurrent(graph, call, "Mamba2", operands, state, form, attributes | layout.attributes)
        yield Decision(site(call), True)


def _requires(graph: ir.Graph) -> Iterable[str]:
    if PADDED_ROWS not in {value.name for value in graph.inputs}:
        yield "padding is not removed yet"


MAMBA2 = GraphPass("mamba2", _rewrite, _requires)
