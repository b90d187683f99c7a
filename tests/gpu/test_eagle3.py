"""EAGLE-3 heads and MTP layers on the card: their results, their acceptance rate, and unchanged output."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import qwen_mtp
from tests.eagle import FOR_GPU, NUM_LAYERS, TorchHead, expected_counts, save_tiny_head
from tests.gpu.test_speculation import (
    FEW_BLOCKS,
    GREEDY,
    KINDS,
    LIMITS,
    PAGE,
    check_greedy,
    prompts,
    prompts_of_a_block,
)
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.mtp import TorchPredictor, save_tiny_mimo
from tests.tolerances import GPU_TOLERANCES, HEAD_TOLERANCES, assert_close
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.request import Request

DRAFTS = 4
BUILT: dict[str, Any] = {**LIMITS, "tokens_per_block": PAGE, "max_draft_len": DRAFTS, "gather_context_logits": True}


class Models:
    """A model and its EAGLE-3 head or MTP layer, converted for each other and built in ``root``."""

    head: TorchHead | TorchPredictor

    def __init__(self, root: Path, method: str, norm_before_residual: bool = False, family: str = "mimo") -> None:
        """``family``: that of a model with an MTP layer."""
        self.method, head = method, root / ("head" if method == "eagle3" else "model")
        if method == "eagle3":
            shape = {"num_hidden_layers": NUM_LAYERS, **FOR_GPU.of_model()}
            model = save_tiny_model("llama", root / "model", dtype=torch.bfloat16, **shape).float()
            how = {"norm_before_residual": norm_before_residual}
            tensors = save_tiny_head(head, shape=FOR_GPU, dtype=torch.bfloat16, **how)
            self.head = TorchHead(tensors, model, norm_before_residual, FOR_GPU)
        elif family == "mimo":
            self.head = save_tiny_mimo(root / "model", FOR_GPU, torch.bfloat16)
        else:
            self.head = qwen_mtp.save_tiny_qwen(family, root / "model", dtype=torch.bfloat16, **qwen_mtp.FOR_GPU)
        convert_checkpoint(str(root / "model"), root / "checkpoint", draft_model_dir=str(head))
        convert_checkpoint(str(head), root / "head-checkpoint", target_model_dir=str(root / "model"))
        self.engine, self.head_engine = root / "engine", root / "head-engine"
        build_engine(root / "checkpoint", self.engine, target="sm_90", **BUILT)
        build_engine(root / "head-checkpoint", self.head_engine, target="sm_90", **BUILT)

    def drafting(self, **options: Any) -> dict[str, Any]:
        """Options by which every draft is verified: how many would pay depends on times, which differ between runs."""
        how = {"num_speculative_tokens": DRAFTS, "enable_adaptive_verification": False}
        return {"method": self.method, "model": self.head_engine, **how, **options}


@pytest.fixture(scope="module", params=["eagle3", "mtp"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp(request.param), request.param)


def test_a_head_whose_residual_stream_is_normed(tmp_path: Path) -> None:
    test_a_head_computes_what_its_reference_does(Models(tmp_path, "eagle3", norm_before_residual=True))


def test_a_head_computes_what_its_reference_does(models: Models) -> None:
    """Steps have many tokens, two (a draft was accepted) or one, over features that the model's engine has stored."""
    native, head = core(), models.head
    tolerances = HEAD_TOLERANCES if models.method == "eagle3" else GPU_TOLERANCES
    engines = [native.Engine(str(path / "rank0.engine")) for path in (models.engine, models.head_engine)]
    target = native.open_executor([engines[0]], num_blocks=8)
    draft = native.open_executor([engines[1]], num_blocks=8, features_of=target)
    table, known = np.array([[5, 0, 7, 2]], np.int32), head.known.numpy()

    def run(executor: Any, tokens: list[int], past: int, num_logits: int = 1) -> np.ndarray:
        lengths = [np.array([number], np.int32) for number in (len(tokens), past)]
        wanted = np.arange(len(tokens) - num_logits, len(tokens), dtype=np.int32)
        logits: np.ndarray = native.step(executor, np.array(tokens, np.int32), *lengths, table, wanted)
        return logits

    tokens = np.random.default_rng(0).integers(3, VOCAB_SIZE, 77).tolist()
    for first, end in ((0, 33), (33, 75), (75, 76)):  # the newest token is not computed when a head drafts
        run(target, tokens[first:end], first)
    features, follow = head.features(tokens)[:-1], tokens[1:]
    run(draft, tokens[:64], 0, 0)  # the next tokens are the first of a block
    run(draft, tokens[64:75], 64, 0)
    found = run(draft, tokens[75:], 75)
    for drafted in (9, 300, 44, 5):
        hidden = head.hidden(features, follow)
        assert_close(found[:, known], head.logits(hidden)[-1:].numpy(), "bfloat16", table=tolerances)
        assert np.all(np.delete(found, known, axis=1) < -1e29)
        features, follow = torch.cat([features, hidden[-1:]]), [*follow, drafted]
        found = run(draft, [drafted], len(follow))


def test_greedy_tokens_are_those_of_the_reference(models: Models) -> None:
    """The device samples, with and without edits and log probabilities, or the host does; some prompts are cached."""
    wanted = [Request(prompt, SamplingParams(**GREEDY, **KINDS[row % 4])) for row, prompt in enumerate(prompts())]
    with LLM(models.engine, speculative_config=models.drafting()) as llm:
        for _ in range(2):
            responses = [handle.result() for handle in llm.session.submit_all(wanted)]
        speculation = llm.get_stats().speculation
    assert speculation.num_drafts > 400
    assert speculation.num_accepted[0] > 0
    for request, response, kind in zip(wanted, responses, KINDS * 15, strict=True):
        check_greedy(models.head.model, request, response, kind)


def test_heads_are_right_as_often_as_their_references(models: Models) -> None:
    """Few tokens are allowed, so that even a head with random weights is right in part of its draft tokens.

    Rounding changes some draft tokens.
    """
    allowed = [*models.head.known[20:22].tolist(), 390]  # the head does not know the last token
    banned = [[token] for token in range(VOCAB_SIZE) if token not in allowed]
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, bad=banned)
    expected = np.zeros((2, DRAFTS), int)
    with LLM(models.engine, speculative_config=models.drafting()) as llm:
        for seed in range(12):
            prompt = np.random.default_rng(seed).integers(3, VOCAB_SIZE, 20 + seed).tolist()
            generated = llm.generate({"prompt_token_ids": prompt}, params).outputs[0].token_ids
            expected += expected_counts(models.head, prompt, generated, set(allowed), DRAFTS)
        speculation = llm.get_stats().speculation
    found = np.array([speculation.num_drafted[:DRAFTS], speculation.num_accepted[:DRAFTS]])
    assert 0.1 < speculation.acceptance[0] < 0.95
    np.testing.assert_allclose(found, expected, rtol=0.1, atol=6)


def test_preempted_sequences_draft_on(models: Models) -> None:
    """Blocks go to the host and back with their features."""
    wanted = [Request(prompt, SamplingParams(**GREEDY)) for prompt in prompts_of_a_block()]
    with LLM(models.engine, speculative_config=models.drafting(), **FEW_BLOCKS) as llm:
        responses = [handle.result() for handle in llm.session.submit_all(wanted)]
        stats = llm.get_stats()
    assert stats.num_swap_preemptions + stats.num_recompute_preemptions > 0
    for request, response in zip(wanted, responses, strict=True):
        check_greedy(models.head.model, request, response, {})


def test_a_hybrid_is_drafted_for_by_its_layer(tmp_path: Path) -> None:
    models = Models(tmp_path, "mtp", family="qwen3_5")
    test_greedy_tokens_are_those_of_the_reference(models)
    test_heads_are_right_as_often_as_their_references(models)
