"""The MTP layer of a tiny MiMo, which predicts a further token: its drafts, and that they do not change the output."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.e2e.test_eagle3 import BUILT, DRAFTS, stepper
from tests.e2e.test_speculation import described, requests
from tests.eagle import expected_counts
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.mtp import save_tiny_mimo
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import ArgumentError, ConvertError


class Models:
    """A MiMo and its MTP layer, converted and built as two engines in ``root``."""

    def __init__(self, root: Path, **built: Any) -> None:
        self.root, model = root, str(root / "model")
        self.head = save_tiny_mimo(root / "model")
        convert_checkpoint(model, root / "checkpoint", draft_model_dir=model)
        convert_checkpoint(model, root / "layer-checkpoint", target_model_dir=model)
        self.engine, self.head_engine = root / "engine", root / "layer-engine"
        build_engine(root / "checkpoint", self.engine, **{**BUILT, **built})
        most = max(built.get("max_num_tokens", 0), 64)
        build_engine(root / "layer-checkpoint", self.head_engine, **{**BUILT, "max_num_tokens": most})

    def drafting(self, **options: Any) -> dict[str, Any]:
        """Options that verify every draft: with adaptive verification, drafts depend on times, which differ by run."""
        how = {"num_speculative_tokens": DRAFTS, "enable_adaptive_verification": False}
        return {"method": "mtp", "model": self.head_engine, **how, **options}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("mtp"))


def test_the_layer_computes_what_its_code_says(models: Models) -> None:
    """The layer runs on the model's states first, then on its own, which it stores where logits are wanted."""
    run, head = stepper(models), models.head
    tokens = np.random.default_rng(0).integers(3, VOCAB_SIZE, 37).tolist()
    found = np.concatenate([run(tokens[first:end], first, end - first) for first, end in ((0, 21), (21, 36))])
    features, follow = head.features(tokens)[:-1], tokens[1:]
    np.testing.assert_allclose(found, head.logits(features).numpy(), rtol=1e-4, atol=1e-4)  # the model's states
    run(tokens[:18], 0, of_head=True)
    found = run(tokens[18:], 18, len(tokens) - 18, of_head=True)
    expected = head.logits(head.hidden(features, follow)).numpy()[17:]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    for drafted in (9, 300, 44):
        hidden = head.hidden(features, follow)
        features, follow = torch.cat([features, hidden[-1:]]), [*follow, drafted]
        found = run([drafted], len(follow), 1, of_head=True)
        expected = head.logits(head.hidden(features, follow)).numpy()[-1]
        np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-4)


def test_the_layer_changes_nothing(models: Models) -> None:
    outputs = []
    for config in (None, models.drafting(), models.drafting(enable_adaptive_verification=True)):
        with LLM(models.engine, speculative_config=config) as llm:
            for _ in range(2):  # prompts are in the cache the second time
                handles = llm.session.submit_all(requests())
                outputs.append([described(handle.result()) for handle in handles])
            speculation = llm.get_stats().speculation
        if config and not config["enable_adaptive_verification"]:
            assert speculation.num_drafts > 100
    assert all(output == outputs[0] for output in outputs[1:])


def test_the_drafts_are_those_of_the_published_code(models: Models) -> None:
    """Few tokens are allowed, so that about half of the drafts are accepted and wrong inputs of the layer show."""
    allowed, counts = [20, 21, 390], np.zeros((2, DRAFTS), int)
    prompt = np.random.default_rng(0).integers(3, VOCAB_SIZE, 47).tolist()
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, allowed_token_ids=allowed)
    with LLM(models.engine, speculative_config=models.drafting()) as llm:
        for length in (47, 32, 31, 3, 1):
            output = llm.generate({"prompt_token_ids": prompt[:length]}, params)
            tokens = output.outputs[0].token_ids
            counts += expected_counts(models.head, prompt[:length], tokens, set(allowed), DRAFTS)
        speculation = llm.get_stats().speculation
    found = np.array([speculation.num_drafted[:DRAFTS], speculation.num_accepted[:DRAFTS]])
    np.testing.assert_array_equal(found, counts)
    assert 0.1 < speculation.acceptance[0] < 0.9


def test_a_model_that_does_not_draft_is_as_usual(models: Models, tmp_path: Path) -> None:
    """The model's network leaves the MTP layer out."""
    convert_checkpoint(str(models.root / "model"), tmp_path / "checkpoint")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **BUILT)
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    tokens = []
    for engine in (models.engine, tmp_path / "engine"):
        with LLM(engine) as llm:
            tokens.append(llm.generate({"prompt_token_ids": [7, 8, 9]}, params).outputs[0].token_ids)
            assert [port.size for port in llm.session.manifest.module.kept] == ([60] if engine == models.engine else [])
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
def test_another_method_is_refused(models: Models, method: str) -> None:
    with pytest.raises(ArgumentError, match=r"is the engine of a layer of a model: pass method mtp"):
        LLM(models.engine, speculative_config=models.drafting(method=method))


def test_models_without_such_a_layer_are_refused(tmp_path: Path) -> None:
    save_tiny_mimo(tmp_path / "none", num_nextn_predict_layers=0)
    save_tiny_model("qwen2", tmp_path / "qwen2")
    without, other = str(tmp_path / "none"), str(tmp_path / "qwen2")
    for partner in ("draft_model_dir", "target_model_dir"):
        with pytest.raises(ConvertError, match=r"num_nextn_predict_layers: expected 1, for one layer .*, found 0"):
            convert_checkpoint(without, tmp_path / "checkpoint", **{partner: without})
    message = r"whose own layer drafts \(MTP\), found it with a model of the family qwen2"
    with pytest.raises(ConvertError, match=message):
        convert_checkpoint(other, tmp_path / "checkpoint", target_model_dir=other)
