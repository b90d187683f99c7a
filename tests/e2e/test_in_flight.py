"""In-flight batching: many different requests at once get exactly the tokens that each gets alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.models import save_tiny_model
from tests.real_models import SMOLLM2_LIMITS
from trtllm_lite.bench.serving import Run, serve
from trtllm_lite.bench.workload import PlannedRequest, Workload
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.runtime.session.sampling_params import SamplingParams
from trtllm_lite.runtime.session.session import Session

NUM_REQUESTS = SMOLLM2_LIMITS["max_batch_size"]
# Requests of many kinds, repeated in turn.
KINDS = (
    SamplingParams(temperature=0.0, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=7, ignore_eos=True),
    SamplingParams(temperature=1.2, seed=8, top_k=40, top_p=0.9),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    SamplingParams(temperature=0.7, seed=9, min_p=0.05, logprobs=2, logit_bias={5: 2.0}),
    SamplingParams(temperature=1.1, seed=10, top_n_sigma=1.5, top_p=0.95),
)


# The model is as wide as SmolLM2, with fewer layers and a smaller vocabulary.
SHAPE = {
    **{"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3},
    **{"num_hidden_layers": 3, "vocab_size": 4096, "max_position_embeddings": SMOLLM2_LIMITS["max_seq_len"]},
}


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of a random model as wide as SmolLM2, or of SmolLM2 itself with ``--all-combinations``."""
    if request.config.getoption("all_combinations"):
        return request.getfixturevalue("smollm2_engine")
    directory = tmp_path_factory.mktemp("in_flight")
    save_tiny_model("llama", directory / "model", **SHAPE)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint")
    build_engine(directory / "checkpoint", directory / "engine", **SMOLLM2_LIMITS)
    return directory / "engine"


@pytest.fixture(scope="module")
def session(engine: Path) -> Session:
    return ModelRunner.from_dir(engine, kv_cache_enable_block_reuse=True).session


def planned(session: Session, **fields: Any) -> list[PlannedRequest]:
    workload = Workload(num_requests=NUM_REQUESTS, input_len="4:40", output_len="1:8", **fields)
    return workload.requests(session.manifest.model.vocab_size, session.limits)


def token_ids(handle: RequestHandle) -> list[int | None]:
    return [response.token_id for response in handle.result()]


def demand(requests: Sequence[PlannedRequest], tokens_per_block: int) -> int:
    """Tokens in whole KV cache blocks that all requests need at the same time; a last token is never stored."""
    lengths = [request.prompt_len + request.output_len - 1 for request in requests]
    return sum(-(-length // tokens_per_block) * tokens_per_block for length in lengths)


def test_64_mixed_requests_get_the_tokens_each_gets_alone(session: Session) -> None:
    plans = planned(session, prefix_len=40, prefix_share=0.3, priorities="0:5,20:1,-20:1")
    requests = [
        Request(
            plan.prompt_ids,
            replace(KINDS[row % len(KINDS)], max_tokens=plan.output_len, detokenize=False),
            priority=plan.priority,
        )
        for row, plan in enumerate(plans)
    ]
    together = [token_ids(handle) for handle in session.submit_all(requests)]
    assert together == [token_ids(session.submit(request)) for request in requests]
    assert len({tuple(tokens) for tokens in together}) > NUM_REQUESTS // 2


@pytest.fixture(scope="module")
def requests(session: Session) -> list[PlannedRequest]:
    return planned(session)


@pytest.fixture(scope="module")
def uncapped(session: Session, requests: list[PlannedRequest]) -> Run:
    """The results of ``requests`` when the whole cache is available."""
    return serve(session, requests)


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
def test_a_quarter_of_the_cache_changes_neither_tokens_nor_order(
    session: Session, engine: Path, requests: list[PlannedRequest], uncapped: Run, policy: str
) -> None:
    quarter = demand(requests, session.limits.tokens_per_block) // 4
    runner = ModelRunner.from_dir(engine, max_tokens_in_paged_kv_cache=quarter, capacity_scheduler_policy=policy)
    capped = serve(runner.session, requests)
    assert capped.outputs == uncapped.outputs
    begun = [
        (record.token_times_s[0], len(request.prompt_ids))
        for record, request in zip(capped.records, requests, strict=True)
    ]
    for place, (instant, length) in enumerate(begun):
        # A request is overtaken by shorter prompts only if the step time is limited, as on a slow machine.
        assert all(later >= instant or shorter < length for later, shorter in begun[place + 1 :])
    assert capped.steps > uncapped.steps
