"""Results of references are computed once, and again when what they follow from has changed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests import references
from tests.models import tiny_model
from tests.references import KeptReference

SEQUENCES = [[5, 6, 7, 8], [9, 10]]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model("llama")


def not_loaded() -> PreTrainedModel:
    raise AssertionError("the result should be kept, but the model is loaded")


def test_another_process_takes_what_one_computed(model: PreTrainedModel, tmp_path: Path) -> None:
    file = tmp_path / "file.gguf"
    file.write_bytes(b"weights")
    first, second = (KeptReference(file, tmp_path / "store", load) for load in (lambda: model, not_loaded))
    made = first.logits("logits", SEQUENCES, [2, 1])
    for logits, tokens, count in zip(made, SEQUENCES, (2, 1), strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([tokens])).logits[0, -count:].numpy()
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    for left, right in zip(made, second.logits("logits", SEQUENCES, [2, 1]), strict=True):
        np.testing.assert_array_equal(left, right)
    tokens = first.continuations("tokens", SEQUENCES, 6)
    assert second.continuations("tokens", SEQUENCES, 6) == tokens
    for prompt, batched in zip(SEQUENCES, tokens, strict=True):
        assert first.continuations("alone", [prompt], 6) == [batched]


def test_a_result_of_other_origin_is_not_taken(
    model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file.gguf"
    file.write_bytes(b"weights")
    KeptReference(file, tmp_path / "store", lambda: model).logits("logits", SEQUENCES, [2, 1])
    unchanged = KeptReference(file, tmp_path / "store", not_loaded)
    with pytest.raises(AssertionError, match="model is loaded"):
        unchanged.logits("logits", [[5, 6, 7, 9], [9, 10]], [2, 1])
    monkeypatch.setattr(references, "version", lambda package: f"{package} of tomorrow")
    with pytest.raises(AssertionError, match="model is loaded"):
        KeptReference(file, tmp_path / "store", not_loaded).logits("logits", SEQUENCES, [2, 1])
    monkeypatch.undo()
    file.write_bytes(b"other weights")
    with pytest.raises(AssertionError, match="model is loaded"):
        KeptReference(file, tmp_path / "store", not_loaded).logits("logits", SEQUENCES, [2, 1])
