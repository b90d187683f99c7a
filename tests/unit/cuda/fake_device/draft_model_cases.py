"""A draft model on the same fake device: the streams of both engines run as late as they may."""

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.csrc.tiny_engine import TinyEngine
from tests.unit.cuda.fake_device.requests import (
    LIMITS,
    Answer,
    check,
    clean,
    continuation,
    greedy,
    random_prompts,
    run,
)
from tests.unit.cuda.toy_engine import (
    MAX_SEQ_LEN,
    PAGE,
    make_toy_engine,
    make_toy_engine_with_features,
    successor,
    to_bytes,
)
from trtllm_lite import _core
from trtllm_lite._core import CudaExecutor, Engine, EventLoop
from trtllm_lite.errors import ArgumentError

MAX_DRAFT_LEN = 2


def check_kinds(answers: list[Answer], prompts: list[list[int]], kinds: list[Any]) -> None:
    for answer, prompt, kind in zip(answers, prompts, kinds, strict=True):
        assert answer.tokens == continuation(prompt, kind)


def save(path: Path, toy: TinyEngine) -> Engine:
    path.write_bytes(to_bytes(toy))
    return Engine(str(path))


@pytest.fixture(params=["model", "head"])
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Engine, Engine]:
    """An engine, and one that generates the same: a draft model, or a head that reads the first one's features."""
    if request.param == "model":
        toys = make_toy_engine(MAX_DRAFT_LEN), make_toy_engine(1)
    else:
        toys = make_toy_engine_with_features(MAX_DRAFT_LEN), make_toy_engine_with_features(borrows=True)
    first, second = (save(tmp_path / f"{number}.engine", toy) for number, toy in enumerate(toys))
    return first, second


def drafting(engines: tuple[Engine, Engine], num_blocks: int = 0, **changes: Any) -> EventLoop:
    first, second = engines
    executor = CudaExecutor(first, num_blocks=num_blocks)
    draft = CudaExecutor(second, num_blocks=num_blocks, features_of=executor)
    how = {"max_draft_len": MAX_DRAFT_LEN, "paces_drafts": False, "draft_model": draft}
    return EventLoop(executor, **LIMITS, **how, **changes)


def test_all_drafts_are_kept(engines: tuple[Engine, Engine]) -> None:
    """Only drafts after a token with non-finite logits are rejected."""
    loop, prompts = drafting(engines), random_prompts(0, 40)
    for answer, prompt in zip(run(loop, [(prompt, greedy(12)) for prompt in prompts]), prompts, strict=True):
        check(answer, prompt, 12)
    stats = loop.stats()
    num_damaged = sum(clean(prompt, 12) < 12 for prompt in prompts)
    assert stats["num_drafted"][0] > 100
    for drafted, kept in zip(stats["num_drafted"], stats["num_accepted"], strict=True):
        assert drafted - kept <= num_damaged


def test_preempted_sequences_draft_on(fake_driver: ctypes.CDLL, engines: tuple[Engine, Engine]) -> None:
    """Blocks are copied to the host and back, with the contents of both engines' caches."""
    loop = drafting(engines, MAX_SEQ_LEN // PAGE + 2, num_host_blocks=40, max_utilization=True)
    prompts = [prompt[:6] for prompt in random_prompts(2, 12)]
    for answer, prompt in zip(
        run(loop, [(prompt, greedy(20)) for prompt in prompts], fake_driver), prompts, strict=True
    ):
        check(answer, prompt, 20)
    stats = loop.stats()
    assert stats["num_swap_preemptions"] > 0
    assert sum(stats["num_accepted"]) > 0.9 * sum(stats["num_drafted"]) > 0


def test_a_place_of_a_draft_costs_a_graph_and_a_copy(fake_driver: ctypes.CDLL, engines: tuple[Engine, Engine]) -> None:
    """Each step copies inputs to the device and tokens back; each draft also copies its sampling parameters.

    Prefill steps are launched kernel by kernel. So are the first steps of a head's later drafts, which compute tokens
    of the draft before again.
    """
    loop, num_drafts, prompt = drafting(engines), 4, [4, 9, 2, 6, 3]
    names = (b"graphs", b"to_device", b"to_host")
    before = [fake_driver.fake_count(name) for name in names]
    num_tokens = 1 + num_drafts * (1 + MAX_DRAFT_LEN)
    [answer] = run(loop, [(prompt, greedy(num_tokens))])
    check(answer, prompt, num_tokens)
    graphs, to_device, to_host = (fake_driver.fake_count(name) - was for name, was in zip(names, before, strict=True))
    num_steps = num_drafts * (1 + MAX_DRAFT_LEN)
    computes_again = json.loads(engines[1].manifest)["modules"][0]["kind"] == "drafting_head"
    assert graphs == num_steps - (num_drafts - 1 if computes_again else 0)
    assert to_host == 1 + num_steps
    assert to_device == 1 + num_steps + num_drafts + 2  # 2 copies for the draft model's prefill


def test_the_sampling_of_neighbours_is_copied_at_once(fake_driver: ctypes.CDLL, engines: tuple[Engine, Engine]) -> None:
    """Sampling records of equal length are copied at once; the last one, which is longer by its edits, separately."""
    loop, prompts = drafting(engines), [[4, 9, 2], [8, 1], [7, 7, 7, 6], [5]]
    names = (b"slices", b"to_device", b"to_host")
    before = [fake_driver.fake_count(name) for name in names]
    kinds = [greedy(10), greedy(10), greedy(10), greedy(10, repetition_penalty=1.8)]
    answers = run(loop, list(zip(prompts, kinds, strict=True)), fake_driver)
    check_kinds(answers, prompts, kinds)
    slices, to_device, to_host = (fake_driver.fake_count(name) - was for name, was in zip(names, before, strict=True))
    num_drafted = loop.stats()["num_drafts"]  # one for each sequence of each draft
    assert slices > 0
    assert to_device - to_host < num_drafted  # copies that do not belong to a step


def test_a_head_reads_what_its_model_keeps(tmp_path: Path) -> None:
    engine = save(tmp_path / "model.engine", make_toy_engine_with_features())
    head = save(tmp_path / "head.engine", make_toy_engine_with_features(borrows=True))
    num_blocks = 4095  # with the spare block whole pages
    executor = CudaExecutor(engine, num_blocks=num_blocks)
    draft = CudaExecutor(head, num_blocks=num_blocks, features_of=executor)
    tokens, tables = [3, 20, 31, 7, 40, 2], np.array([[5, 1]], np.int32)

    def step(which: CudaExecutor, new: list[int], past: int) -> np.ndarray:
        lengths = [np.array([number], np.int32) for number in (len(new), past)]
        wanted = np.array([len(new) - 1], np.int32)
        logits: np.ndarray = _core.step(which, np.array(new, np.int32), *lengths, tables, wanted)
        return logits

    step(executor, tokens[:5], 0)
    assert step(draft, tokens[5:], 5).argmax() == successor(tokens)
    assert executor.memory["kv_cache"] * 2 == draft.memory["kv_cache"] * 3


def test_heads_without_fitting_features_are_refused(tmp_path: Path) -> None:
    plain, kept, head = (
        save(tmp_path / f"{name}.engine", toy)
        for name, toy in (
            ("plain", make_toy_engine()),
            ("kept", make_toy_engine_with_features()),
            ("head", make_toy_engine_with_features(borrows=True)),
        )
    )
    message = r"draft model: it reads features bfloat16 \[num_blocks, 4, 1\]"
    sources = (None, CudaExecutor(plain, num_blocks=9), CudaExecutor(kept, num_blocks=8))
    wrong = ("found no engine that keeps", "which the engine .* keeps, found none", "of 9 blocks, found 8 blocks")
    for lender, found in zip(sources, wrong, strict=True):
        with pytest.raises(ArgumentError, match=f"{message}.*{found}"):
            CudaExecutor(head, num_blocks=9, features_of=lender)
