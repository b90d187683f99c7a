"""Fused networks with recurrent layers against transformers, for sequences of any lengths."""

import numpy as np
import onnx_ir as ir
import torch
from transformers import PreTrainedModel

from tests.tolerances import RECURRENT_TOLERANCES, assert_close
from tests.unit.builder.networks import Shape
from tests.unit.builder.scenario import Sequences
from trtllm_lite.builder.graph import dims


def check_fused_network(model: PreTrainedModel, fused: ir.Model, shape: Shape) -> None:
    """Compare the logits of two steps of three sequences; ``shape`` is that of the model's attention."""
    state = Sequences(shape, num_seqs=3)
    for value in fused.graph.inputs:
        if str(value.name).startswith(("conv_state.", "recurrent_state.")):
            extents = [state.num_blocks, *(extent for extent in dims(value) or () if isinstance(extent, int))]
            state.caches[str(value.name)] = np.full(extents, 1e3, np.float32)  # what is in a new block does not matter
    texts: list[list[int]] = [[], [], []]
    for lens in ([7, 1, 4], [1, 6, 2]):
        feeds = state.feeds(lens)
        for text, new in zip(texts, np.split(feeds["token_ids"], np.cumsum(lens)[:-1]), strict=True):
            text += new.tolist()
        (logits,) = state.step([fused], lens, feeds)
        with torch.no_grad():
            expected = [model(torch.tensor([text]), use_cache=False).logits[0, -1].numpy() for text in texts]
        assert_close(logits, np.stack(expected), table=RECURRENT_TOLERANCES)
