"""The MTP layers of tiny models, which predict a further token: their drafts, and that they change no output."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.e2e.test_eagle3 import BLOCK, BUILT, DRAFTS, stepper
from tests.e2e.test_speculation import described, requests
from tests.eagle import expected_counts
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.mtp import TorchPredictor, save_tiny_mimo
from tests.qwen_mtp import save_tiny_qwen
from tests.tolerances import RECURRENT_TOLERANCES, assert_close
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import ArgumentError, BuildError, ConvertError

HYBRIDS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")


class Models:
    """A model of ``family`` and its MTP layer, converted and built as two engines in ``root``."""

    head: TorchPredictor

    def __init__(self, root: Path, family: str = "mimo", **built: Any) -> None:
        self.root, model = root, str(root / "model")
        if family == "mimo":
            self.head = save_tiny_mimo(root / "model")
        else:
            self.head = save_tiny_qwen(family, root / "model", stacked=family == "qwen3_5_moe")
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


@pytest.fixture(scope="module", params=["mimo", *HYBRIDS])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp(request.param), request.param)


def test_the_layer_computes_what_its_code_says(models: Models) -> None:
    """The layer runs on the model's states first, then on its own, which it stores where logits are wanted."""
    run, head = stepper(models), models.head
    tokens = np.random.default_rng(0).integers(3, VOCAB_SIZE, 37).tolist()
    found = np.concatenate([run(tokens[first:end], first, end - first) for first, end in ((0, 21), (21, 36))])
    features, follow = head.features(tokens)[:-1], tokens[1:]
    assert_close(found, head.logits(features).numpy(), table=RECURRENT_TOLERANCES)  # the model's states
    run(tokens[:18], 0, of_head=True)
    found = run(tokens[18:], 18, len(tokens) - 18, of_head=True)
    expected = head.logits(head.hidden(features, follow)).numpy()[17:]
    assert_close(found, expected, table=RECURRENT_TOLERANCES)
    for drafted in (9, 300, 44):
        hidden = head.hidden(features, follow)
        features, follow = torch.cat([features, hidden[-1:]]), [*follow, drafted]
        found = run([drafted], len(follow), 1, of_head=True)
        expected = head.logits(head.hidden(features, follow)).numpy()[-1]
        assert_close(found[0], expected, table=RECURRENT_TOLERANCES)


def test_the_layer_changes_nothing(models: Models) -> None:
    outputs, num_blocks = [], set()
    for config in (None, models.drafting(), models.drafting(enable_adaptive_verification=True)):
        with LLM(models.engine, speculative_config=config) as llm:
            num_blocks.add(llm.session.limits.num_blocks)
            for _ in range(2):  # prompts are in the cache the second time
                handles = llm.session.submit_all(requests())
                outputs.append([described(handle.result()) for handle in handles])
            speculation = llm.get_stats().speculation
        if config and not config["enable_adaptive_verification"]:
            assert speculation.num_drafts > 100
    assert all(output == outputs[0] for output in outputs[1:])
    assert len(num_blocks) == 1  # the layer takes no room from states


def test_the_drafts_are_those_of_the_published_code(models: Models) -> None:
    """Few tokens are allowed, so that about half of the drafts are accepted and wrong inputs of the layer show.

    It also drafts for a prompt that was in the cache, with its features.
    """
    allowed, counts = [20, 21, 390], np.zeros((2, DRAFTS), int)
    prompt = np.random.default_rng(0).integers(3, VOCAB_SIZE, 47).tolist()
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, allowed_token_ids=allowed)
    with LLM(models.engine, speculative_config=models.drafting()) as llm:
        for length in (47, 47, 32, 31, 3, 1):
            output = llm.generate({"prompt_token_ids": prompt[:length]}, params)
            tokens = output.outputs[0].token_ids
            counts += expected_counts(models.head, prompt[:length], tokens, set(allowed), DRAFTS)
        stats = llm.get_stats()
    assert stats.prefix_hit_rate > 0.2
    speculation = stats.speculation
    found = np.array([speculation.num_drafted[:DRAFTS], speculation.num_accepted[:DRAFTS]])
    np.testing.assert_array_equal(found, counts)
    assert 0.1 < speculation.acceptance[0] < 0.9


@pytest.mark.parametrize("family", ["mimo", "qwen3_5_moe"])
def test_a_layer_drafts_for_two_ranks(family: str, tmp_path: Path) -> None:
    """Both keep the same features, and the layer reads those of the first."""
    models, outputs = Models(tmp_path, family, tp_size=2), []
    for config in (None, models.drafting()):
        with LLM(models.engine, speculative_config=config) as llm:
            for _ in range(2):
                handles = llm.session.submit_all(requests())
                outputs.append([described(handle.result()) for handle in handles])
            speculation = llm.get_stats().speculation
    assert all(output == outputs[0] for output in outputs[1:])
    assert speculation.num_drafts > 100
    assert speculation.num_accepted[0] > 20


@pytest.mark.parametrize(
    ("checkpoint", "options", "message"),
    [
        ("layer-checkpoint", {"tp_size": 2}, r"tp_size is 2: a head or a layer that drafts .* is for one device"),
        ("checkpoint", {"pp_size": 2}, "pp_size is 2: models that keep features .* are for one GPU, or for ranks on a"),
        ("checkpoint", {"tp_size": 2, "target": "sm_90"}, "tp_size is 2: models that keep features .* are for one GPU"),
    ],
)
def test_places_without_features_are_refused(
    models: Models, checkpoint: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=message):
        build_engine(models.root / checkpoint, tmp_path / "engine", **options)
    assert not (tmp_path / "engine").exists()


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


@pytest.mark.parametrize("partner", ["draft_model_dir", "target_model_dir"])
def test_hybrids_without_their_layer_are_refused(partner: str, tmp_path: Path) -> None:
    """transformers saves models without the layer, and leaves what the config says of it."""
    save_tiny_qwen("qwen3_5", tmp_path / "model")
    model, config = str(tmp_path / "model"), tmp_path / "model" / "config.json"
    weights = tmp_path / "model" / "model.safetensors"
    for changes, message in (
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers: expected 1, found 2"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings: expected False, found True"),
    ):
        usual = config.read_text()
        config.write_text(json.dumps({**json.loads(usual), **changes}))
        with pytest.raises(ConvertError, match=message):
            convert_checkpoint(model, tmp_path / "checkpoint", **{partner: model})
        config.write_text(usual)
    tensors = load_file(weights)
    save_file({name: tensor for name, tensor in tensors.items() if name != "mtp.norm.weight"}, weights)
    if partner == "target_model_dir":
        with pytest.raises(ConvertError, match=r"missing \(1\): mtp\.norm\.weight"):
            convert_checkpoint(model, tmp_path / "checkpoint", target_model_dir=model)
    save_file({name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}, weights)
    with pytest.raises(ConvertError, match=r"expected the tensors of a layer that predicts a further token \(MTP\)"):
        convert_checkpoint(model, tmp_path / "checkpoint", **{partner: model})
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("host_cache_size", [0, 1 << 26])
@pytest.mark.parametrize("family", HYBRIDS)
def test_preempted_hybrids_go_on_with_drafts(family: str, host_cache_size: int, tmp_path: Path) -> None:
    """What is computed again or comes back from host memory includes the features that the layer reads."""
    models = Models(tmp_path, family)
    made = [replace(request, params=replace(request.params, max_tokens=70)) for request in requests()]
    with LLM(models.engine, kv_cache_config={"enable_block_reuse": False}) as llm:
        alone = [described(llm.session.submit(request).result()) for request in made]
        of_state = llm.session.limits.cache_groups[-1][2]
    cache = {"max_tokens": (14 * BLOCK), "host_cache_size": host_cache_size}
    with LLM(
        models.engine,
        speculative_config=models.drafting(),
        kv_cache_config=cache,
        max_batch_size=3,
        scheduler_config={"capacity_scheduler_policy": "MAX_UTILIZATION"},
    ) as llm:
        for _ in range(2):
            handles = llm.session.submit_all(made)
            assert [described(handle.result()) for handle in handles] == alone
        stats, num_blocks = llm.get_stats(), llm.session.limits.num_blocks
    assert num_blocks == 14 + 3 * of_state
    assert stats.speculation.num_accepted[0] > 20
    assert stats.num_recompute_preemptions + stats.num_swap_preemptions > 0
