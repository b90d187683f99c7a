"""Guided requests by the CUDA executor on a fake driver: the device draws under masks that the host makes meanwhile."""

import ctypes
import string
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tests.unit.cuda.fake_device.requests import (
    LIMITS,
    Answer,
    check,
    collect,
    continuation,
    expected,
    greedy,
    held,
    logits_after,
    random_prompts,
    run,
)
from tests.unit.cuda.toy_engine import MAX_SEQ_LEN, PAGE, POISON, VOCAB, make_toy_engine, to_bytes
from trtllm_lite import _testing
from trtllm_lite._core import CudaExecutor, Engine, EventLoop, FinishReason, Grammar, GrammarCompiler, NgramSizes
from trtllm_lite.runtime.session.grammars import _library_path

CHARACTERS = (string.digits + string.ascii_letters)[: VOCAB - 1]  # the text of each token
END = VOCAB - 1
EXPRESSIONS = (
    "[0-9]{2,4}([ace]{2}|[g-z]{3}){2,9}",
    "(12|13|x){1,3}[a-cA-C]{2,30}",
    "(abc|abd|b[0-9]){2,12}",
    "[0-9a-c]{9,30}",
)
WIDE = "\n".join(
    [f'start: "x" ({" | ".join(f"r{n}" for n in range(2100))})', *(f'r{n}: "{n}" "y"' for n in range(2100))]
)
WANTS: tuple[dict[str, Any], ...] = (
    {},
    {"logprobs": 3},
    {"repetition_penalty": 1.8, "presence_penalty": 0.5},
    {"min_tokens": 6, "logit_bias": [(END, 30.0)]},
    {"bad_words": [[11], [3]], "frequency_penalty": 2.0},
)


@cache
def compiler() -> GrammarCompiler:
    names = {name: token for token, name in enumerate([*CHARACTERS, "<end>"])}
    tokenizer = tokenizers.Tokenizer(models.BPE(names, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    library = str(_library_path())
    return GrammarCompiler(library=library, tokenizer_json=tokenizer.to_str(), vocab_size=VOCAB, end_ids=[END])


@cache
def grammar(expression: str) -> Grammar:
    return compiler().compile("regex", expression)


def allowed(expression: str, tokens: list[int]) -> list[int]:
    """The tokens that may follow, found by a regular expression library with partial matching."""
    text = "".join(CHARACTERS[token] for token in tokens)
    pattern = regex.compile(expression)
    found = [token for token, letter in enumerate(CHARACTERS) if pattern.fullmatch(text + letter, partial=True)]
    return [*found, END] if pattern.fullmatch(text) else found


def guided(prompt: list[int], params: Any, expression: str) -> list[int]:
    """Greedy tokens among those that the CPU's logit processors and the grammar allow, until there are none."""
    tokens: list[int] = []
    while len(tokens) < params.max_tokens and not {END, POISON} & set(tokens):
        logits = np.array(_testing.processed(params, prompt, tokens, logits_after(prompt + tokens)))
        possible = allowed(expression, tokens)
        best = max(possible, key=lambda token: (logits[token], -token))
        if np.isinf(logits[best]):
            break
        tokens.append(best)
    return tokens


def wanted(length: int, **changes: Any) -> Any:
    return greedy(length, ignore_eos=False, end_ids=[END], **changes)


def requests(seed: int, count: int) -> tuple[list[tuple[list[int], Any]], list[str | None]]:
    """Prompts, parameters and grammars; every third request has no grammar."""
    prompts = [prompt[:12] for prompt in random_prompts(seed, count)]
    expressions = [None if number % 3 == 2 else EXPRESSIONS[number % len(EXPRESSIONS)] for number in range(count)]
    wants = [
        greedy(9) if expression is None else wanted(4 + number % 20, **WANTS[number % len(WANTS)])
        for number, expression in enumerate(expressions)
    ]
    return list(zip(prompts, wants, strict=True)), expressions


def arguments(expressions: list[str | None], **host: Any) -> list[dict[str, Any]]:
    """Arguments of each request; every fourth one also gets ``host``, which makes the host sample it."""
    return [
        {"grammar": None if expression is None else grammar(expression), **(host if number % 4 == 1 else {})}
        for number, expression in enumerate(expressions)
    ]


def check_guided(answers: list[Answer], given: list[tuple[list[int], Any]], expressions: list[str | None]) -> None:
    for answer, (prompt, want), expression in zip(answers, given, expressions, strict=True):
        if expression is None:
            check(answer, prompt, want.max_tokens)
            continue
        tokens = guided(prompt, want, expression)
        assert answer.tokens == tokens, answer.end and answer.end.message
        assert answer.end is not None
        if END in tokens:
            assert answer.end.reason == FinishReason.END_ID
        else:
            assert answer.end.reason == (
                FinishReason.LENGTH if len(tokens) == want.max_tokens else FinishReason.ERROR
            ), answer.end.message


def test_the_device_draws_under_masks(executor: CudaExecutor) -> None:
    given, expressions = requests(0, 42)
    answers = run(EventLoop(executor, **LIMITS), given, each=arguments(expressions))
    check_guided(answers, given, expressions)
    assert sum(END in answer.tokens for answer in answers) > 5
    for answer, (prompt, want) in zip(answers, given, strict=True):
        if want.logprobs is None:
            continue
        for number, event in enumerate(event for event in answer.events if event.tokens):
            [found], [token] = event.logprobs, event.tokens
            logits = logits_after(prompt + answer.tokens[:number]).astype(np.float64)
            logprobs = logits - np.log(np.exp(logits).sum())  # independent of the mask
            assert found.logprob == pytest.approx(logprobs[token], rel=1e-6)
            assert found.rank == 1 + (logits > logits[token]).sum()


def test_rows_that_the_host_samples_mix_with_others(executor: CudaExecutor) -> None:
    given, expressions = requests(1, 30)
    loop = EventLoop(executor, **LIMITS)
    check_guided(run(loop, given, each=arguments(expressions, generation_logits=True)), given, expressions)


def test_a_step_with_guided_rows_is_a_graph_and_a_launch(fake_driver: ctypes.CDLL, executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS)
    names = ("graphs", "launched", "to_device", "to_host", "to_host_bytes")
    prompt, want, expression = [1, 2, 3], wanted(11), "[0-9]{20}"

    def counts() -> dict[str, int]:
        return {name: fake_driver.fake_count(name.encode()) for name in names}

    before = counts()
    [answer] = run(loop, [(prompt, want)], each=[{"grammar": grammar(expression)}])
    loop.shut_down()
    done = {name: count - before[name] for name, count in counts().items()}
    assert answer.tokens == guided(prompt, want, expression)
    num_in_time = done["graphs"] - loop.stats()["num_late_rows"]
    assert num_in_time in (10, 11)  # a step more may be under way when the last token is known
    assert done["launched"] == 4 + done["graphs"]
    # Each step copies inputs and a mask; the sequence copies its sampling parameters once.
    assert done["to_device"] - 1 == 2 * done["to_host"] == 2 * (done["graphs"] + 1)
    assert done["to_host_bytes"] == 4 * done["to_host"]  # no logits are copied


def test_preempted_sequences_keep_their_texts(fake_driver: ctypes.CDLL, engine: Engine) -> None:
    executor = CudaExecutor(engine, num_blocks=MAX_SEQ_LEN // PAGE + 2)
    loop = EventLoop(executor, **LIMITS, num_host_blocks=40, max_utilization=True)
    given, expressions = requests(2, 24)
    check_guided(run(loop, given, fake_driver, arguments(expressions)), given, expressions)
    stats = loop.stats()
    assert stats["num_recompute_preemptions"] + stats["num_swap_preemptions"] > 0


def test_what_a_form_leaves_is_an_error_of_its_request_alone(executor: CudaExecutor) -> None:
    wide = compiler().compile("lark", WIDE)
    prompts = random_prompts(3, 6)
    wants = [greedy(6), wanted(8), greedy(5), wanted(20, min_tokens=8), wanted(8), greedy(8)]
    each = [{}, {"grammar": wide}, {}, {"grammar": grammar("[0-9]{3}")}, {"grammar": grammar(EXPRESSIONS[2])}, {}]
    loop = EventLoop(executor, **LIMITS)
    answers = run(loop, list(zip(prompts, wants, strict=True)), each=each)
    for number in (0, 2, 5):
        check(answers[number], prompts[number], wants[number].max_tokens)
    assert answers[4].tokens == guided(prompts[4], wants[4], EXPRESSIONS[2])
    for number, problem in ((1, "the grammar cannot be followed any further"), (3, "guided_decoding) ban all")):
        end = answers[number].end
        assert end is not None
        assert end.reason == FinishReason.ERROR
        assert problem in end.message
    assert answers[3].tokens == guided(prompts[3], wants[3], "[0-9]{3}")
    assert len(answers[3].tokens) == 3


def test_too_little_memory_for_masks_is_an_error_of_its_request_alone(
    executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, want = EventLoop(executor, **LIMITS), wanted(6)
    each = [{"grammar": grammar(EXPRESSIONS[3])}, {}]
    monkeypatch.setenv("FAKE_MAX_PINNED", "16")
    without, free = run(loop, [([3], want), ([4], greedy(5))], each=each)
    check(free, [4], 5)
    assert without.end is not None
    assert without.end.reason == FinishReason.ERROR
    assert "masks of tokens: expected 1 MiB of host memory that can be page-locked" in without.end.message
    monkeypatch.delenv("FAKE_MAX_PINNED")
    [answer] = run(loop, [([3], want)], each=each[:1])
    assert answer.tokens == guided([3], want, EXPRESSIONS[3])


def test_poison_ends_its_guided_request_only(executor: CudaExecutor) -> None:
    """Non-finite logits are an error, even if the mask would hide them."""
    given = [([1, POISON], wanted(4)), ([3], wanted(5))]
    expressions: list[str | None] = ["[0-9]{9}", "[0-9]{9}"]
    bad, good = run(EventLoop(executor, **LIMITS), given, each=arguments(expressions))
    assert bad.end is not None
    assert bad.end.reason == FinishReason.ERROR
    assert "NaN" in bad.end.message
    assert good.tokens == guided([3], given[1][1], "[0-9]{9}")


def test_a_cancelled_request_leaves_its_slot_to_the_next(fake_driver: ctypes.CDLL, executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS | {"max_batch_size": 1})
    with held(fake_driver):
        first = loop.submit(np.array([3], np.int32), wanted(30), grammar=grammar("[0-9]{30}"))
        loop.cancel(first)
    for expression in (EXPRESSIONS[1], None, EXPRESSIONS[2]):
        want = greedy(7) if expression is None else wanted(7)
        answer = _answer(loop, [5, 6], want, expression)
        assert answer.tokens == (expected([5, 6], 7) if expression is None else guided([5, 6], want, expression))


def _answer(loop: EventLoop, prompt: list[int], want: Any, expression: str | None) -> Answer:
    """The answer to one request, whatever other requests end meanwhile."""
    request = loop.submit(np.array(prompt, np.int32), want, grammar=None if expression is None else grammar(expression))
    answer = Answer()
    while answer.end is None:
        polled = loop.poll(10.0)
        assert polled is not None
        for event in polled[0]:
            answer.tokens += event.tokens if event.request_id == request else []
        answer.end = next((end for end in polled[1] if end.request_id == request), None)
    return answer


@pytest.mark.parametrize("seed", range(3))
def test_any_company_that_comes_and_goes_changes_nothing(drafting_engine: Engine, seed: int) -> None:
    """The cache is small; there are drafts, host-sampled requests, and requests cancelled after they have begun."""
    executor = CudaExecutor(drafting_engine, num_blocks=MAX_SEQ_LEN // PAGE + 4)
    changes: dict[str, Any] = {"max_draft_len": 2, "paces_drafts": False, "drafting": NgramSizes(1, 3)}
    loop = EventLoop(executor, **LIMITS, num_host_blocks=20, max_utilization=True, enable_block_reuse=True, **changes)
    given, expressions = requests(10 + seed, 40)
    each = arguments(expressions, generation_logits=seed % 2 == 1)
    ids = [
        loop.submit(np.array(prompt, np.int32), want, **more) for (prompt, want), more in zip(given, each, strict=True)
    ]
    answers = {request: Answer() for request in ids}
    doomed = set(ids[seed::6])

    def cancel() -> None:
        for request in doomed:
            if answers[request].tokens:
                loop.cancel(request)

    collect(loop, answers, after_each=cancel)
    kept = [number for number, request in enumerate(ids) if request not in doomed]
    check_guided([answers[ids[i]] for i in kept], [given[i] for i in kept], [expressions[i] for i in kept])
    for number in set(range(len(ids))) - set(kept):
        (prompt, want), expression, tokens = given[number], expressions[number], answers[ids[number]].tokens
        whole = expected(prompt, want.max_tokens) if expression is None else guided(prompt, want, expression)
        assert tokens == whole[: len(tokens)]


@pytest.fixture
def drafting_engine(tmp_path: Path) -> Engine:
    """The toy engine, built for drafts."""
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(make_toy_engine(2)))
    return Engine(str(path))


@pytest.mark.parametrize("host", [{}, {"generation_logits": True}], ids=["device", "mixed"])
def test_drafts_have_masks_of_their_own(drafting_engine: Engine, host: dict[str, Any]) -> None:
    """Drafts from the prompt are right, wrong, or forbidden, and some follow an end token."""
    loop = EventLoop(
        CudaExecutor(drafting_engine), **LIMITS, max_draft_len=2, paces_drafts=False, drafting=NgramSizes(1, 3)
    )
    generator = np.random.default_rng(4)
    given, expressions = requests(4, 36)
    for number, ((prompt, want), expression) in enumerate(zip(given, expressions, strict=True)):
        likely = continuation(prompt, want) if expression is None else guided(prompt, want, expression)
        seen = [*likely[:6], int(generator.integers(VOCAB)), *prompt][:14]
        given[number] = ([token for token in seen if token != POISON], want)
    check_guided(run(loop, given, each=arguments(expressions, **host)), given, expressions)
    stats = loop.stats()
    assert 0 < sum(stats["num_accepted"]) < sum(stats["num_drafted"])


@pytest.mark.parametrize("num_free", [0, 5], ids=["first", "sixth"])
@pytest.mark.parametrize("drafts", [{}, {"max_draft_len": 2, "paces_drafts": False, "drafting": NgramSizes(1, 3)}])
def test_a_late_row_sits_steps_out_and_holds_nobody_up(
    drafting_engine: Engine, num_free: int, drafts: dict[str, Any]
) -> None:
    """A mask is held back until all other requests have ended; then its request continues unchanged."""
    loop = EventLoop(CudaExecutor(drafting_engine), **LIMITS, **drafts)
    given, expressions = requests(7, 24)
    held = _testing.HeldGrammar(grammar(expressions[3]), num_free)
    each = arguments(expressions)
    each[3] = {"grammar": held}
    submitted = [(np.array(prompt, np.int32), want, more) for (prompt, want), more in zip(given, each, strict=True)]
    answers = {loop.submit(prompt, want, **more): Answer() for prompt, want, more in submitted}
    late = list(answers)[3]

    def release() -> None:
        if all(answer.end is not None for request, answer in answers.items() if request != late):
            held.release()

    collect(loop, answers, after_each=release)
    check_guided(list(answers.values()), given, expressions)
    assert loop.stats()["num_late_rows"] > 0


def test_a_late_row_that_is_cancelled_leaves_its_slot(executor: CudaExecutor) -> None:
    loop = EventLoop(executor, **LIMITS)
    held = _testing.HeldGrammar(grammar("[0-9]{30}"), 2)
    late = loop.submit(np.array([3], np.int32), wanted(30), grammar=held)
    answer = _answer(loop, [5, 6], greedy(9), None)
    assert answer.tokens == expected([5, 6], 9)
    loop.cancel(late)
    for expression in EXPRESSIONS:
        want = wanted(9)
        assert _answer(loop, [5, 6], want, expression).tokens == guided([5, 6], want, expression)
    held.release()
    loop.shut_down()
