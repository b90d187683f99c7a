"""A draft model, on tiny models: the output is unchanged, and if the models agree all draft tokens are accepted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e import test_guided_decoding as guided
from tests.e2e.test_lora import adapted
from tests.e2e.test_speculation import LIMITS, described, requests
from tests.models import save_tiny_model
from trtllm_lite import LLM, LoRARequest, SamplingParams
from trtllm_lite.errors import ArgumentError, EngineError, LimitError, TrtllmLiteError
from trtllm_lite.runtime.session import opening

CACHE = {"tokens_per_block": 16, "max_tokens": 256}
OPTIONS: dict[str, Any] = {**LIMITS, "gather_context_logits": True, "kv_cache_config": CACHE}


def drafting(engine_dir: Path) -> dict[str, Any]:
    """Options that verify every draft: with adaptive verification, drafts depend on times, which differ by run."""
    return {
        "method": "draft_model",
        "model": engine_dir,
        "num_speculative_tokens": 5,
        "enable_adaptive_verification": False,
    }


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Callable[..., Path]:
    """Return a function that builds an engine of the model, or of another seed, family or shape, with given options."""

    def build(seed: int = 0, family: str = "llama", shape: dict[str, Any] | None = None, **options: Any) -> Path:
        directory = tmp_path_factory.mktemp("draft")
        source = model_dir
        if seed or shape or family != "llama":
            source = directory / "model"
            save_tiny_model(family, source, seed=seed, **(shape or {}))
        with LLM(source, **{**LIMITS, "kv_cache_config": CACHE, **options}) as llm:
            llm.save(directory / "engine")
        return directory / "engine"

    return build


@pytest.fixture(scope="module")
def same(engine: Callable[..., Path]) -> Path:
    return engine()


@pytest.fixture(scope="module")
def other(engine: Callable[..., Path]) -> Path:
    """The engine of a model of one layer, with other weights."""
    return engine(seed=1, shape={"num_hidden_layers": 1})


@pytest.fixture(params=["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    cache = {**CACHE, "host_cache_size": 1 << 20} if request.param == "MAX_UTILIZATION" else CACHE
    return {**OPTIONS, "kv_cache_config": cache, "scheduler_config": {"capacity_scheduler_policy": request.param}}


def test_a_draft_model_changes_nothing(model_dir: Path, same: Path, other: Path, options: dict[str, Any]) -> None:
    outputs, acceptances = [], []
    for config in (None, drafting(same), drafting(other)):
        with LLM(model_dir, speculative_config=config, **options) as llm:
            handles = llm.session.submit_all(requests())
            outputs.append([described(handle.result()) for handle in handles])
            speculation = llm.get_stats().speculation
        assert outputs[-1] == outputs[0]
        if config:
            assert speculation.num_drafts > 50
            assert speculation.num_drafted[5:] == (0, 0, 0)
            acceptances.append(speculation.acceptance[:5])
    assert np.all(np.array(acceptances[0]) > 0.97)
    assert 0.005 < acceptances[1][0] < 0.6


def test_a_draft_model_drafts_for_requests_with_adapters(model_dir: Path, same: Path, tmp_path: Path) -> None:
    adapted(model_dir, 5, r=6, lora_alpha=9, target_modules="all-linear").save_pretrained(str(tmp_path))
    lora, params = (
        LoRARequest("random", 1, str(tmp_path)),
        SamplingParams(max_tokens=30, temperature=0, ignore_eos=True),
    )
    found = []
    for config in (None, drafting(same)):
        with LLM(model_dir, speculative_config=config, max_lora_rank=8, **OPTIONS) as llm:
            outputs = llm.generate([list(range(5, 40))] * 4, params, lora_request=[lora, None] * 2)
            found.append([output.outputs[0].token_ids for output in outputs])
            acceptance = llm.get_stats().speculation.acceptance
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
    assert acceptance[0] < 1  # the rate of the requests with adapters


def test_drafts_are_made_without_adapters(model_dir: Path, engine: Callable[..., Path]) -> None:
    draft = engine(max_lora_rank=8)
    with pytest.raises(ArgumentError, match="takes adapters, but drafting uses none: build the draft engine"):
        LLM(model_dir, speculative_config=drafting(draft), **OPTIONS)


def test_sequences_of_one_prompt_and_searches(model_dir: Path, same: Path) -> None:
    prompt = {"prompt_token_ids": list(range(5, 40))}
    several = SamplingParams(n=4, max_tokens=30, temperature=0.8, seed=3, ignore_eos=True)
    search = SamplingParams(n=3, max_tokens=10, use_beam_search=True)
    found = []
    for config in (None, drafting(same)):
        with LLM(model_dir, speculative_config=config, **OPTIONS) as llm:
            outputs = [*llm.generate([prompt, prompt], several), llm.generate(prompt, search)]
            found.append([completion.token_ids for output in outputs for completion in output.outputs])
            speculation = llm.get_stats().speculation
    assert found[0] == found[1]
    assert speculation.num_drafts > 8 * 4
    assert speculation.acceptance[0] > 0.97


def test_a_draft_model_keeps_to_grammars(model_dir: Path, same: Path) -> None:
    """The draft model does not know the grammars of requests; drafts that break them are never accepted."""
    outputs = []
    for config in (None, drafting(same)):
        with LLM(model_dir, speculative_config=config, **OPTIONS) as llm:
            handles = llm.session.submit_all(guided.requests())
            outputs.append([described(handle.result()) for handle in handles])
            speculation = llm.get_stats().speculation
    assert outputs[0] == outputs[1]
    assert speculation.num_drafts > 50
    assert 0.05 < speculation.acceptance[0] < 0.97


def test_paced_drafts_change_nothing(model_dir: Path, other: Path) -> None:
    params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    outputs = []
    for config in (None, {**drafting(other), "enable_adaptive_verification": True}):
        with LLM(model_dir, speculative_config=config, **OPTIONS) as llm:
            outputs.append(llm.generate({"prompt_token_ids": [7, 8, 9]}, params).outputs[0].token_ids)
    assert outputs[0] == outputs[1]


def test_both_caches_share_the_memory(model_dir: Path, same: Path) -> None:
    with LLM(same) as llm:
        memory = 24 * llm.session.manifest.kv_cache.bytes_per_block
    config = {"tokens_per_block": 16, "max_gpu_total_bytes": memory}
    for speculation, num_blocks in ((None, 24), (drafting(same), 12)):
        with LLM(model_dir, speculative_config=speculation, **{**OPTIONS, "kv_cache_config": config}) as llm:
            assert llm.session.limits.num_blocks == num_blocks


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        ({"kv_cache_config": {"tokens_per_block": 32}}, ArgumentError, "tokens_per_block .* 16, found 32"),
        ({"max_batch_size": 2}, LimitError, "max_batch_size of at least 6, found 2"),
        ({"max_seq_len": 64}, LimitError, "max_seq_len of at least 128, found 64"),
        ({"max_num_tokens": 8}, LimitError, "max_num_tokens of at least 12, found 8"),
        ({"shape": {"vocab_size": 320}}, ArgumentError, "vocab_size of the engine .*, found 320"),
        ({"family": "gemma2"}, ArgumentError, "without attention windows"),
        ({"family": "qwen3_5"}, ArgumentError, "without recurrent layers"),
    ],
    ids=str,
)
def test_engines_that_cannot_draft_are_refused(
    made: dict[str, Any],
    error: type[TrtllmLiteError],
    message: str,
    model_dir: Path,
    engine: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draft = engine(**made)
    monkeypatch.setattr(opening, "make_executor", lambda *_, **__: pytest.fail("memory was reserved"))
    with pytest.raises(error, match=f"draft model: expected .*{message}"):
        LLM(model_dir, speculative_config=drafting(draft), **OPTIONS)


def test_the_directory_must_hold_an_engine(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="does not exist"):
        LLM(model_dir, speculative_config=drafting(tmp_path / "nothing"), **OPTIONS)
    with pytest.raises(ArgumentError, match="model of speculative_config is None: expected an engine's directory"):
        LLM(model_dir, speculative_config={"method": "draft_model"}, **OPTIONS)
    with pytest.raises(ArgumentError, match="model is not an option of method ngram"):
        LLM(model_dir, speculative_config={"method": "ngram", "model": "engine"}, **OPTIONS)
