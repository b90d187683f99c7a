"""Beam search in the event loop, over engines of tiny random models, against transformers' generate."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.models import VOCAB_SIZE, save_tiny_model
from tests.tolerances import assert_close
from trtllm_lite import _core
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import LimitError

FAMILIES = ("llama", "mistral")  # mistral has a sliding window
BLOCK = 16
LIMITS = {"max_batch_size": 8, "max_input_len": 64, "max_seq_len": 96, "max_num_tokens": 24}
MAX_TOKENS = 18  # crosses a block boundary or two from any start
PROMPT_LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5)  # some prompts are computed in chunks
END_IDS = list(range(5, VOCAB_SIZE, 9))
SETTINGS = [
    {"num_beams": 2},
    {"num_beams": 4, "early_stopping": True},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": 1.7},
    {"num_beams": 3, "early_stopping": "never", "length_penalty": -0.5},
    {"num_beams": 2, "length_penalty": 0.0},
]
EARLY_STOPPING = {
    False: _core.sampling.EarlyStopping.FALSE,
    True: _core.sampling.EarlyStopping.TRUE,
    "never": _core.sampling.EarlyStopping.NEVER,
}

Hypotheses = list[tuple[list[int], float]]


@dataclass
class Outcome:
    """What the loop delivered for one request."""

    tokens: list[int] = field(default_factory=list)
    hypotheses: Hypotheses = field(default_factory=list)
    context_logits: list[np.ndarray] = field(default_factory=list)
    end: Any = None


class Loop:
    """An event loop over an engine's executor, with the outcomes that it has delivered so far."""

    def __init__(self, engine_dir: Path, *, num_blocks: int = 0, **options: Any) -> None:
        self.executor = _core.CpuExecutor(_core.Engine(str(engine_dir / "rank0.engine")), num_blocks=num_blocks)
        self.loop = _core.EventLoop(self.executor, **LIMITS, **options)
        self.outcomes: dict[int, Outcome] = {}

    def submit(self, prompt: list[int], max_tokens: int = MAX_TOKENS, **options: Any) -> int:
        """Queue a request; ``num_beams`` makes it a beam search. Returns its id."""
        params = _core.sampling.SamplingParams()
        beams = None
        if "num_beams" in options:
            beams = _core.sampling.BeamSearchParams()
            beams.num_beams = options.pop("num_beams")
            beams.length_penalty = options.pop("length_penalty", 1.0)
            beams.early_stopping = EARLY_STOPPING[options.pop("early_stopping", False)]
        arguments = {
            name: options.pop(name) for name in ("timeout", "context_logits", "stop_sequences") if name in options
        }
        for name, value in {"temperature": 0, "max_tokens": max_tokens, **options}.items():
            setattr(params, name, value)
        request = self.loop.submit(np.array(prompt, np.int32), params, beams=beams, **arguments)
        self.outcomes[request] = Outcome()
        return request

    def hear(self) -> bool:
        """Take the events delivered so far; returns False when the loop is closed."""
        events = self.loop.poll(10.0)
        for event in events[0] if events else []:
            outcome = self.outcomes[event.request_id]
            assert outcome.end is None
            outcome.tokens += event.tokens
            outcome.hypotheses += event.hypotheses
            outcome.context_logits += [] if event.context_logits is None else [event.context_logits]
        for end in events[1] if events else []:
            assert self.outcomes[end.request_id].end is None
            self.outcomes[end.request_id].end = end
        return events is not None

    def finish(self) -> dict[int, Outcome]:
        """Return the outcome of every request, after checking that every block is free again."""
        self.loop.shut_down()
        while self.hear():
            pass
        assert all(outcome.end is not None for outcome in self.outcomes.values())
        assert self.loop.stats()["num_used_blocks"] == 0
        return self.outcomes


@pytest.fixture(scope="module", params=FAMILIES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PreTrainedModel, Path]]:
    """A random model and the directory of its engine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # splitting matrices this small among threads costs more than it saves
    folder = tmp_path_factory.mktemp(request.param)
    reference = save_tiny_model(request.param, folder / "model")
    convert_checkpoint(str(folder / "model"), folder / "checkpoint", "float32")
    build_engine(folder / "checkpoint", folder / "engine", tokens_per_block=BLOCK, gather_context_logits=True, **LIMITS)
    yield reference, folder / "engine"
    torch.set_num_threads(num_threads)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(100 * seed + length).integers(3, VOCAB_SIZE, length).tolist()


def expected_hypotheses(
    model: PreTrainedModel, prompt: list[int], end_ids: list[int], max_tokens: int = MAX_TOKENS, **settings: Any
) -> Hypotheses:
    """transformers' sequences, each cut after its first end token, with their scores, best first."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_return_sequences=settings["num_beams"],
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=end_ids or None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **settings,
    )
    result = []
    generated = output.sequences[:, len(prompt) :].tolist()
    for tokens, score in zip(generated, output.sequences_scores.tolist(), strict=True):
        ends = [i for i, token in enumerate(tokens) if token in end_ids]
        result.append((tokens[: ends[0] + 1] if ends else tokens[:max_tokens], score))
    return result


def assert_same(actual: Hypotheses, expected: Hypotheses) -> None:
    assert [tokens for tokens, _ in actual] == [tokens for tokens, _ in expected]
    np.testing.assert_allclose([score for _, score in actual], [score for _, score in expected], rtol=1e-4)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_equals_transformers(model, settings):
    """All prompts run at once, so that searches share steps with chunks of other prompts."""
    reference, engine = model
    loop = Loop(engine)
    cases = [(prompt_of(length), END_IDS) for length in PROMPT_LENGTHS] + [(prompt_of(10), [])]
    requests = [loop.submit(prompt, end_ids=end_ids, **settings) for prompt, end_ids in cases]
    outcomes = loop.finish()
    lengths = set()
    for request, (prompt, end_ids) in zip(requests, cases, strict=True):
        expected = expected_hypotheses(reference, prompt, end_ids, **settings)
        assert_same(outcomes[request].hypotheses, expected)
        assert not outcomes[request].tokens
        lengths |= {len(tokens) for tokens, _ in expected}
    if settings.get("length_penalty", 1.0) <= 1.0:
        assert len(lengths) > 2, "sequences that end early are part of the test"


@pytest.mark.parametrize("settings", SETTINGS[:3], ids=str)
def test_equals_transformers_with_penalties_and_minimum(model, settings):
    reference, engine = model
    loop = Loop(engine)
    prompts = [prompt_of(length, seed=1) for length in PROMPT_LENGTHS]
    bad_words = [[i, (i * 7) % VOCAB_SIZE] for i in range(60)] + [[15], [20, 21]]
    fields = {"repetition_penalty": 1.3, "min_tokens": 7, "bad_words": bad_words, "end_ids": END_IDS}
    requests = [loop.submit(prompt, **fields, **settings) for prompt in prompts]
    outcomes = loop.finish()
    for request, prompt in zip(requests, prompts, strict=True):
        expected = expected_hypotheses(
            reference,
            prompt,
            END_IDS,
            repetition_penalty=1.3,
            min_new_tokens=7,
            bad_words_ids=bad_words,
            **settings,
        )
        assert_same(outcomes[request].hypotheses, expected)


@pytest.mark.parametrize("options", [{}, {"max_utilization": True, "num_host_blocks": 8, "enable_block_reuse": True}])
def test_searches_and_other_requests_do_not_change_each_other(model, options):
    """The cache is smaller than the demand, and some requests are cancelled; the others' results are as if alone."""
    _, engine = model
    rng = np.random.default_rng(5)
    cases = []
    for i in range(24):
        search = {"num_beams": int(rng.integers(1, 4))} if i % 3 == 0 else {}
        sampled = {} if search else {"temperature": 0.8, "seed": i}
        # Every fourth prompt begins like the one before.
        prompt = prompt_of(20, i - i % 4)[: 3 * (i % 4)] + prompt_of(int(rng.integers(1, 40)), i)
        cases.append((prompt, {"end_ids": END_IDS, **search, **sampled}))

    def alone(prompt, case):
        loop = Loop(engine)
        request = loop.submit(prompt, **case)
        return loop.finish()[request]

    loop = Loop(engine, num_blocks=10, **options)
    requests = [loop.submit(prompt, **case) for prompt, case in cases]
    cancelled = requests[3::7]
    for request in cancelled:
        loop.loop.cancel(request)
    outcomes = loop.finish()
    stats = loop.loop.stats()
    if options:
        assert stats["num_recompute_preemptions"] + stats["num_swap_preemptions"] > 0
    for request, (prompt, case) in zip(requests, cases, strict=True):
        if request in cancelled:
            continue
        expected = alone(prompt, case)
        assert outcomes[request].tokens == expected.tokens
        assert outcomes[request].hypotheses == expected.hypotheses  # equal to the last bit
        assert outcomes[request].end.timings.num_generated_tokens > 0


def test_cancelled_and_timed_out_searches_give_everything_back(model):
    _, engine = model
    loop = Loop(engine, num_blocks=24)
    for i in range(40):
        timeout = {"timeout": 0.002 * (i % 5)} if i % 3 == 0 and i % 5 else {}
        request = loop.submit(prompt_of(1 + i), num_beams=1 + i % 8 if i < 20 else 2, max_tokens=6 + i % 17, **timeout)
        if i % 2:
            loop.loop.cancel(request - i % 3)
    ended = {outcome.end.reason for outcome in loop.finish().values()}
    assert _core.FinishReason.CANCELLED in ended


def test_prompt_outputs_come_once(model):
    reference, engine = model
    prompt = prompt_of(37)
    loop = Loop(engine)
    request = loop.submit(prompt, num_beams=3, context_logits=True)
    outcome = loop.finish()[request]
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0].float().numpy()
    assert_close(np.concatenate(outcome.context_logits), expected)
    assert len(outcome.hypotheses) == 3


def test_timings_count_the_tokens_of_a_beam(model):
    _, engine = model
    loop = Loop(engine)
    request = loop.submit(prompt_of(9), num_beams=4)
    end = loop.finish()[request].end
    assert end.reason == _core.FinishReason.LENGTH
    assert (end.timings.num_prompt_tokens, end.timings.num_generated_tokens) == (9, MAX_TOKENS)
    assert 0 < end.timings.first_token_seconds < end.timings.total_seconds


def test_impossible_searches_are_refused(model):
    _, engine = model
    loop = Loop(engine, num_blocks=12)

    def refused(match: str, **options: Any) -> None:
        with pytest.raises(LimitError, match=match):
            loop.submit(prompt_of(30), **options)

    refused(r"num_beams in 1 \.\. 8, found 9.*max_batch_size", num_beams=9)
    refused(r"KV cache of 12 blocks of 16 tokens, found 6 beams that may need 14 blocks", num_beams=6)
    refused("no stop sequences in a beam search, found 1", num_beams=2, stop_sequences=[[1, 2]])
    wrong = loop.submit(prompt_of(3), num_beams=2, temperature=0.5)
    nothing = loop.submit(prompt_of(3), num_beams=2, end_ids=[7], allowed_token_ids=[7], min_tokens=2)
    outcomes = loop.finish()
    assert outcomes[wrong].end.reason == outcomes[nothing].end.reason == _core.FinishReason.ERROR
    assert "temperature must be 0 or 1 with beam search" in outcomes[wrong].end.message
    assert "no possible sequence" in outcomes[nothing].end.message
