"""Every prefix of the pipeline computes what the standard network computes."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from tests.unit.builder.networks import VARIANTS, network
from tests.unit.builder.scenario import Sequences
from trtllm_lite.builder.passes import PIPELINE
from trtllm_lite.builder.pipeline import run_passes

PREFILL, DECODE, MIXED = [7, 1, 4], [1, 1, 1], [1, 6, 2]
STEPS = (PREFILL, DECODE, MIXED, DECODE)
# Rounding of float32 sums in another order; logits have magnitudes of about 1.
TOLERANCE = 2e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_passes_keep_logits_and_caches(variant: str) -> None:
    original = network(variant)
    fused, _ = run_passes(original)
    state = Sequences(VARIANTS[variant], num_seqs=3)
    for lens in STEPS:
        expected, actual = state.step([original, fused], lens)
        np.testing.assert_allclose(actual, expected, atol=TOLERANCE)
    _check_caches(state)


def _check_caches(state: Sequences) -> None:
    """Check that the paged caches hold, in the blocks of the tables, the content of the contiguous caches."""
    for layer in range(state.shape.layers):
        for sequence, length in enumerate(state.past_lens):
            blocks = state.block_tables[sequence]
            keys = state.caches[f"key_cache.{layer}"][blocks].transpose(1, 0, 3, 2)
            values = state.caches[f"value_cache.{layer}"][blocks].transpose(1, 0, 2, 3)
            for paged, name in ((keys, "past_key"), (values, "past_value")):
                contiguous = state.caches[f"{name}.{layer}"][sequence][:, :length]
                flat = paged.reshape(paged.shape[0], -1, paged.shape[-1])[:, :length]
                np.testing.assert_allclose(flat, contiguous, atol=TOLERANCE)


@pytest.mark.parametrize("variant", ["mistral", "softcap", "qwen2", "qwen3", "bfloat16"])
def test_each_pass_keeps_logits(variant: str) -> None:
    original = network(variant)
    stages = [original, *(run_passes(original, PIPELINE[:count])[0] for count in range(1, len(PIPELINE) + 1))]
    state = Sequences(VARIANTS[variant], num_seqs=3)
    for lens in (PREFILL, MIXED):
        expected, *actual = state.step(stages, lens)
        for graph_pass, logits in zip(PIPELINE, actual, strict=True):
            np.testing.assert_allclose(logits, expected, atol=TOLERANCE, err_msg=graph_pass.name)


@pytest.mark.parametrize("variant", ["mistral", "softcap"])
def test_the_reference_agrees_with_onnxruntime(variant: str) -> None:
    """The reference of this file is right: onnxruntime gives the same logits for the standard network."""
    model = network(variant)
    state = Sequences(VARIANTS[variant], num_seqs=3)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    feeds = state.feeds(PREFILL) | state.caches
    feeds |= {name: feeds[f"{name}.padded"] for name in ("position_ids", "past_lens")}
    logits = session.run(["logits"], {value.name: feeds[value.name] for value in session.get_inputs()})[0]
    (expected,) = Sequences(VARIANTS[variant], num_seqs=3).step([model], PREFILL)
    np.testing.assert_allclose(logits[np.arange(3), np.array(PREFILL) - 1], expected, atol=TOLERANCE)
