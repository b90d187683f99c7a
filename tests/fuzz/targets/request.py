"""Requests: sampling parameters of any type and size, prompts of any form, to an engine with a tokenizer."""

import random
from dataclasses import fields
from pathlib import Path
from typing import Any

from tests.fuzz.documents import HOSTILE_VALUES
from tests.fuzz.engines import LIMITS
from tests.fuzz.model_files import VOCAB, write_model
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint

COUNT = 300
_NAMES = tuple(field.name for field in fields(SamplingParams))
_VALUES: tuple[Any, ...] = (
    *HOSTILE_VALUES,
    *("never", b"ab", "ab", ["ab"], [["ab"]], [[1, 2]], [-1], [VOCAB], [VOCAB - 1], [1.5], [True], ["\ud800"]),
    *({1: 1.0}, {1: float("nan")}, {"a": 1}, {VOCAB: 1.0}, {1: "x"}, (1, 2), {1, 2}, range(3), [[]], [None]),
    *(1e-30, 20, 21, ["x" * 300]),
)
_PROMPTS: tuple[Any, ...] = (
    *("ab", "", "x" * 100_000, "\ud800", b"ab", [1, 5], [], [VOCAB], [-1], [2**63], [1.5], [True], None, 7),
    *({"prompt": "ab"}, {}, {"prompt_token_ids": [1]}, {"prompt": 5}),
    *([[1], [2, 3]], ["ab", "b"], ["ab", [1]], [None], [[]], [[[1]]]),
    *([{"role": "user", "content": "ab"}], [{"role": "user"}], [{"role": "user", "content": [{"type": "image"}]}]),
)


class Target:
    """An LLM over the tiny Llama; the requests need no files."""

    def __init__(self, scratch: Path) -> None:
        (scratch / "model").mkdir()
        write_model(scratch / "model")
        convert_checkpoint(str(scratch / "model"), scratch / "checkpoint")
        build_engine(scratch / "checkpoint", scratch / "engine", **LIMITS)
        self._llm = LLM(scratch / "engine", num_threads=1)

    def write(self, rng: random.Random, directory: Path) -> None:
        del directory
        self._params = {name: rng.choice(_VALUES) for name in rng.sample(_NAMES, rng.choice((0, 1, 1, 2, 3)))}
        self._prompt = rng.choice(_PROMPTS) if rng.random() < 0.3 else [1, 5]
        self._options: dict[str, Any] = {"timeout": 30.0}
        for name in ("priority", "timeout", "cache_salt", "chat"):
            if rng.random() < 0.05:
                self._options[name] = rng.choice((*_VALUES, "x" * 3000, "\ud800", 10**400))

    def read(self, directory: Path) -> None:
        del directory
        self._llm.generate(self._prompt, SamplingParams(**self._params), use_tqdm=False, **self._options)
