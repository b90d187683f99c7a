"""Speculative decoding on the card: the output equals that without drafts, up to near-ties."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.gpu.test_engine import SHAPE, in_words_of
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.tolerances import GPU_TOLERANCES
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.runtime.session.request import Request, Response

LIMITS: dict[str, Any] = {"max_batch_size": 20, "max_input_len": 80, "max_seq_len": 128, "max_num_tokens": 160}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "enable_adaptive_verification": False,
}
MODEL = {"method": "draft_model", "num_speculative_tokens": 4, "enable_adaptive_verification": False}
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 40, "detokenize": False}
# The device samples, with and without edits and log probabilities, or the host does.
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"logprobs": 2},
    {"logit_bias": {5: 1.0}, "bad": [[7]]},
    {"return_generation_logits": True},
)


PAGE = 32
# A prompt of one block and an answer of 40 tokens take three blocks, and the scheduler keeps one block free per running
# request. So two requests run in four blocks, and the earlier preempts the later when it needs its third block while
# the later has its second, whatever drafts are accepted and whenever the requests came.
FEW_BLOCKS: dict[str, Any] = {
    "kv_cache_config": {"max_tokens": 4 * PAGE, "host_cache_size": 1 << 24},
    "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
}


def prompts_of_a_block() -> list[np.ndarray]:
    """Prompts that each get preempted, or preempt another, if there are few blocks."""
    return [prompt[:PAGE] for prompt in prompts()[30:]]


def prompts() -> list[np.ndarray]:
    """Random pieces, each repeated several times."""
    generator = np.random.default_rng(0)
    pieces = [generator.integers(3, VOCAB_SIZE, length) for length in generator.integers(2, 12, 60)]
    return [np.tile(piece, 9)[: 20 + row].astype(np.int32) for row, piece in enumerate(pieces)]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])  # gemma2 has windows, gpt2 no RoPE
def test_greedy_tokens_are_those_of_the_reference(family: str, tmp_path: Path) -> None:
    model = save_tiny_model(
        family, tmp_path / "model", dtype=torch.bfloat16, **in_words_of(family, SHAPE | {"head_dim": 16})
    ).float()
    requests = [Request(prompt, SamplingParams(**GREEDY, **KINDS[row % 4])) for row, prompt in enumerate(prompts())]
    with LLM(tmp_path / "model", target="sm_90", speculative_config=NGRAM, **LIMITS) as llm:
        responses = [handle.result() for handle in llm.session.submit_all(requests)]
        speculation = llm.get_stats().speculation
    assert speculation.num_drafts > 100
    assert speculation.num_accepted[0] > 10
    for request, response, kind in zip(requests, responses, KINDS * 15, strict=True):
        check_greedy(model, request, response, kind)


def check_greedy(model: PreTrainedModel, request: Request, response: list[Response], kind: dict[str, Any]) -> None:
    """Compare a greedy answer with the reference's likeliest token at each position, up to near-ties."""
    tokens = np.array([one.token_id for one in response])
    with torch.no_grad():
        ids = torch.from_numpy(np.concatenate([request.prompt_ids, tokens])).long()
        logits = model(ids[None]).logits[0, len(request.prompt_ids) - 1 : -1].numpy()
    margin = 2 * GPU_TOLERANCES["bfloat16"].relative * np.abs(logits).max()
    assert len(tokens) == GREEDY["max_tokens"]
    check_logprobs(response, logits, float(margin))
    edited = logits.copy()
    edited[:, list(kind.get("logit_bias", []))] += 1.0
    edited[:, [token for [token] in kind.get("bad", [])]] = -np.inf
    assert (edited.max(1) - edited[np.arange(len(tokens)), tokens] <= margin).all()


def check_logprobs(responses: list[Response], logits: np.ndarray, margin: float) -> None:
    """Compare log probabilities, if there are any, with the reference's logits."""
    logprobs = torch.from_numpy(logits).log_softmax(-1).numpy()
    for one, row in zip(responses, logprobs, strict=True):
        assert one.logprobs is None or abs(one.logprobs.logprob - row[one.token_id]) <= margin


def save_engine(model_dir: Path) -> Path:
    """An engine of the model, saved beside it."""
    engine_dir = model_dir.with_name(f"{model_dir.name}_engine")
    with LLM(model_dir, target="sm_90", **LIMITS) as llm:
        llm.save(engine_dir)
    return engine_dir


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_sampled_tokens_do_not_depend_on_drafts(method: str, tmp_path: Path) -> None:
    """The engines are deterministic, so that logits do not depend on how many rows a step has."""
    save_tiny_model("llama", tmp_path / "model", dtype=torch.bfloat16, **SHAPE, head_dim=16, vocab_size=400)
    kinds: list[dict[str, Any]] = [{"top_p": 0.9}, {"top_k": 8, "frequency_penalty": 0.2}, {"repetition_penalty": 1.1}]
    how: dict[str, Any] = {"temperature": 0.4}
    drafting = NGRAM
    if method == "draft_model":
        drafting = MODEL | {"model": save_engine(tmp_path / "model")}
        how = {"temperature": 1.5, "top_k": 8}
    requests = [
        Request(prompt, SamplingParams(**GREEDY | how | kinds[row % 3], seed=row))
        for row, prompt in enumerate(prompts())
    ]
    found = []
    for config in (None, drafting):
        with LLM(tmp_path / "model", target="sm_90", deterministic=True, speculative_config=config, **LIMITS) as llm:
            handles = llm.session.submit_all(requests)
            found.append([[one.token_id for one in handle.result()] for handle in handles])
            speculation = llm.get_stats().speculation
    assert speculation.num_accepted[0] > 10
    different = [
        (row % 3, next(place for place, (one, other) in enumerate(zip(*pair, strict=True)) if one != other))
        for row, pair in enumerate(zip(*found, strict=True))
        if pair[0] != pair[1]
    ]  # the kind of request, and where its tokens part
    assert not different
