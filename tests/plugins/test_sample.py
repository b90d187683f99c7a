"""The reference of Sample draws what the sampler on the host draws, from records as the schema says."""

from typing import Any

import numpy as np
import pytest

from trtllm_lite import _testing
from trtllm_lite._core import sampling
from trtllm_lite.builder.constraints import implied_extents
from trtllm_lite.plugins.sample.records import LARGEST, LOGPROBS, NOT_SEEN, SLOT, record
from trtllm_lite.plugins.sample.reference import reference
from trtllm_lite.plugins.schema import all_schemas
from trtllm_lite.request_fields.draws import NUMBERS

VOCAB, MAX_EDITS, STEPS, SEED = 300, 40, 25, 0x0123456789ABCDEF
NONE = np.full(1, -1, np.int32)  # no draft, no mask
NO_MASKS = np.zeros((0, 10), np.int32)
PROMPT = [5, 17, 5, 250]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20, "logprobs": 0},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.6, "top_n_sigma": 1.5, "logprobs": 2},
    {"temperature": 1.2, "top_n_sigma": 2.0, "top_k": 60, "top_p": 0.9, "frequency_penalty": 0.5},
    {"temperature": 0.9, "top_k": 50, "top_p": 0.8, "min_p": 0.02, "logprobs": 5},
    {"temperature": 1.0, "repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.25, "top_k": 9},
    {"temperature": 0.0, "repetition_penalty": 2.0, "logprobs": 20},
    {"temperature": 1.0, "logit_bias": [(7, 9.0), (5, -3.0)], "frequency_penalty": 1.5},
]


def _record(setting: dict[str, Any]) -> np.ndarray:
    """The single slot [1, slot_words] of a sequence, before its first token."""
    row = np.zeros((), record(MAX_EDITS))
    slot, counts = row["slot"], any(name.endswith("penalty") for name in setting)
    slot["counts_tokens"] = counts
    for name, number in NUMBERS.items():
        slot[name] = number.neutral
    slot["seed"] = (SEED & 0xFFFFFFFF, SEED >> 32)
    for name, value in setting.items():
        if name in SLOT.names:
            slot[name] = value
    slot["num_logprobs"] = setting.get("logprobs", -1) + 1
    bias, seen = dict(setting.get("logit_bias", ())), set(PROMPT) if counts else set()
    for number, token in enumerate({*bias, *seen}):
        row["edits"][number] = (token, 0 if token in seen else NOT_SEEN, bias.get(token, 0), 0)
        slot["num_edits"] = number + 1
    words: np.ndarray = row.reshape(1, 1).view(np.int32)
    return words


def _host(setting: dict[str, Any], generated: list[int] | None = None) -> _testing.Sampler:
    params = sampling.SamplingParams()
    for name, value in {**setting, "seed": SEED, "max_tokens": STEPS}.items():
        assert hasattr(params, name)
        setattr(params, name, value)
    host = _testing.Sampler(1, VOCAB)
    host.set_slot(0, params, PROMPT, generated or [])
    return host


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_draws_what_the_host_draws(setting: dict[str, Any]) -> None:
    host, slots, last = _host(setting), _record(setting), np.zeros(1, np.int32)
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        row = (3 * rng.standard_normal((1, VOCAB))).astype(np.float32)
        operands = (row, np.zeros(1, np.int32), np.full(1, step, np.int32), NONE, NONE, last, slots, NO_MASKS)
        tokens, logprobs, last, slots = reference(operands, {"max_edits": MAX_EDITS})
        (expected,) = host.sample_rows([0], row)
        assert tokens.tolist() == last.tolist() == [expected.token], f"step {step}"
        found = logprobs.view(LOGPROBS)[0, 0]
        if expected.logprobs is None:
            assert not logprobs.any()
            continue
        assert (found["rank"], found["logprob"]) == (expected.logprobs.rank, pytest.approx(expected.logprobs.logprob))
        top = expected.logprobs.top
        assert found["tokens"].tolist() == [token for token, _ in top] + [-1] * (20 - len(top))
        assert found["logprobs"][: len(top)] == pytest.approx([logprob for _, logprob in top], rel=1e-5)


@pytest.mark.parametrize("num_right", range(4))
def test_rows_behind_drafts_that_are_drawn_are_drawn(num_right: int) -> None:
    """The first ``num_right`` of three draft tokens are right. Penalties count sampled tokens only."""
    setting = SETTINGS[6]
    host, again, slots = _host(setting), _host(setting), _record(setting)
    rows = (3 * np.random.default_rng(1).standard_normal((5, VOCAB))).astype(np.float32)
    expected = [host.sample_rows([0], row[None])[0].token for row in rows]
    drafts = np.array([*expected[:3], -1, -1], np.int32)
    if num_right < 3:
        drafts[num_right] = (drafts[num_right] + 1) % VOCAB
    numbers = np.array([0, -2, -2, -2, -1], np.int32)
    last, masks = np.full(1, -7, np.int32), np.repeat(NONE, 5)
    operands = (rows, numbers, np.zeros(5, np.int32), drafts, masks, last, slots, NO_MASKS)
    tokens, _, last, slots = reference(operands, {"max_edits": MAX_EDITS})
    drawn = num_right + 1
    assert tokens.tolist() == expected[:drawn] + [-1] * (5 - drawn)
    assert last.tolist() == [expected[drawn - 1]]
    for row in rows[:drawn]:
        again.sample_rows([0], row[None])
    operands = (rows[4:], np.zeros(1, np.int32), np.full(1, drawn, np.int32), NONE, NONE, last, slots, NO_MASKS)
    assert reference(operands, {"max_edits": MAX_EDITS})[0].tolist() == [again.sample_rows([0], rows[4:])[0].token]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_draws_what_the_host_draws_of_the_tokens_that_a_mask_allows(setting: dict[str, Any]) -> None:
    slots, last, generated = _record(setting), np.zeros(1, np.int32), list[int]()
    rng = np.random.default_rng(2)
    for step in range(STEPS):
        row = (3 * rng.standard_normal((1, VOCAB))).astype(np.float32)
        allowed = rng.random(VOCAB) < 0.1
        allowed[row.argmax()] = False
        masks = np.ones((2, 320), bool)
        masks[1, :VOCAB] = allowed
        words = np.packbits(masks, axis=1, bitorder="little").view(np.int32)
        counter, mask = np.full(1, step, np.int32), np.ones(1, np.int32)
        operands = (row, np.zeros(1, np.int32), counter, NONE, mask, last, slots, words)
        tokens, logprobs, last, slots = reference(operands, {"max_edits": MAX_EDITS})
        host = _host(setting | {"allowed_token_ids": np.flatnonzero(allowed).tolist()}, generated)
        (expected,) = host.sample_rows([0], row)
        assert tokens.tolist() == [expected.token], f"step {step}"
        generated.append(expected.token)
        assert allowed[expected.token]
        if expected.logprobs is not None:  # the log probability from the model's unmodified logits
            found = logprobs.view(LOGPROBS)[0, 0]
            assert found["rank"] == expected.logprobs.rank
            assert found["logprob"] == pytest.approx(expected.logprobs.logprob)


@pytest.mark.parametrize("counter", [LARGEST, 0])
def test_a_mask_leaves_nothing_or_hides_no_damage(counter: int) -> None:
    """Masks forbid all tokens of row 0, all but the non-finite one of row 1, and only the non-finite one of row 2."""
    logits = np.zeros((3, VOCAB), np.float32)
    logits[1, 9], logits[2, 9] = -np.inf, np.nan
    masks = np.zeros((3, 320), bool)
    masks[1, 9], masks[2] = True, True
    masks[2, 9] = False
    words = np.packbits(masks, axis=1, bitorder="little").view(np.int32)
    slots = np.tile(_record(SETTINGS[1]), (3, 1))
    numbers, none = np.arange(3, dtype=np.int32), np.repeat(NONE, 3)
    last = np.full(3, -7, np.int32)
    operands = (logits, numbers, np.full(3, counter, np.int32), none, numbers, last, slots, words)
    tokens, _, last, _ = reference(operands, {"max_edits": MAX_EDITS})
    assert (tokens.tolist(), last.tolist()) == ([-1] * 3, [-7] * 3)


def test_tokens_that_end_a_sequence_are_left_as_their_complement() -> None:
    row = np.zeros((), record(MAX_EDITS))
    row["slot"]["stops"][:2] = (~3, ~4)
    slots = np.stack([np.zeros_like(row), row, row]).view(np.int32).reshape(3, -1)
    logits = np.zeros((4, VOCAB), np.float32)
    logits[[0, 1, 2], [3, 3, 5]] = 1
    logits[3] = np.nan
    numbers, counters = np.array([0, 1, 2, -1], np.int32), np.array([0, LARGEST, 0, 0], np.int32)
    none = np.repeat(NONE, 4)
    operands = (logits, numbers, counters, none, none, np.full(3, -7, np.int32), slots, NO_MASKS)
    tokens, _, last, left = reference(operands, {"max_edits": MAX_EDITS})
    assert tokens.tolist() == [3, 3, 5, -1]
    assert last.tolist() == [3, ~3, 5]
    assert np.array_equal(left, slots)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_without_a_token_leave_their_slot_alone(value: float) -> None:
    logits = np.full((1, VOCAB), -np.inf, np.float32)
    logits[0, 9] = value
    none = np.zeros(1, np.int32)
    for counter in (LARGEST, 0):
        records = _record(SETTINGS[6])
        last, counters = np.full(1, -7, np.int32), np.full(1, counter, np.int32)
        operands = (logits, none, counters, NONE, NONE, last, records, NO_MASKS)
        tokens, _, last, slots = reference(operands, {"max_edits": MAX_EDITS})
        assert (tokens.tolist(), last.tolist()) == ([-1], [-7])
        assert np.array_equal(slots, records)


def test_records_have_the_words_that_the_schema_says() -> None:
    schema = all_schemas()["Sample"]
    words = implied_extents(schema, {"max_edits": MAX_EDITS})["slot_words"]
    assert record(MAX_EDITS).itemsize == 4 * words
    assert schema.output("logprobs").shape == ("num_logits", LOGPROBS.itemsize // 4)
