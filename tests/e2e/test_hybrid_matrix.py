"""Hybrids: drafts, prefix reuse, chunks, preemption, cancelled company, ranks, grammars and adapters change no bit."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from tests.e2e.llm import random_prompts
from tests.e2e.test_eagle3 import BLOCK, BUILT
from tests.e2e.test_guided_decoding import GUIDED, described
from tests.e2e.test_lora import with_adapter
from tests.e2e.test_mtp import HYBRIDS as WITH_MTP
from tests.e2e.test_mtp import Models
from tests.e2e.test_speculation import NGRAM, SUFFIX
from tests.models import FOR_RANKS, HYBRID_FAMILIES, save_tiny_model
from trtllm_lite import LLM, LoRARequest, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime.session.request import Request

DRAFTS: dict[str, Any] = {"num_speculative_tokens": 5, "enable_adaptive_verification": False}
SYNTHETIC = {"method": "synthetic", "synthetic_acceptance_rates": (0.8, 0.6, 0.6, 0.4, 0.2), **DRAFTS}
# The prompts of two requests fit beside their states, which a session adds, and what both generate does not.
SCARCE = {"max_batch_size": 2, "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"}}
FEW_BLOCKS = {"max_tokens": 9 * BLOCK}
# What becomes of requests: options of the session, and of its KV cache.
FATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "undisturbed": ({}, {}),
    "recomputed": (SCARCE, FEW_BLOCKS),
    "swapped": (SCARCE, {**FEW_BLOCKS, "host_cache_size": 1 << 22}),
    "beside_cancelled": ({}, {}),
}
KINDS = (
    SamplingParams(temperature=0.0, allowed_token_ids=[20, 21, 22], ignore_eos=True),
    SamplingParams(temperature=0.0, ignore_eos=True),
    SamplingParams(temperature=0.6, seed=5, top_p=0.95, logprobs=2, ignore_eos=True),
)


@dataclass
class Subject:
    """An engine of a hybrid, its adapters, and what it answers to each request alone, without drafts or reuse."""

    engine: Path
    loras: list[LoRARequest]

    def __post_init__(self) -> None:
        with LLM(self.engine, kv_cache_config={"enable_block_reuse": False}) as llm:
            self.alone = [described(llm.session.submit(request).result()) for request in self.requests()]

    def requests(self) -> list[Request]:
        """Requests with and without grammars, adapters and a common prefix; some texts repeat themselves."""
        made = []
        for row, prompt in enumerate(random_prompts(5, 8, longest=20)):
            params = replace(KINDS[row % 3], max_tokens=80 + row, detokenize=False)
            if row in (4, 7):
                params = replace(params, guided_decoding=GUIDED[row // 3 - 1], ignore_eos=False)
            shared = [7, 8, 9] * 6 if row % 2 else []
            lora = (None, *self.loras)[row // 2 % (1 + len(self.loras))]
            made.append(Request(np.asarray([*shared, *prompt], np.int32), params, lora_request=lora))
        return made


class Subjects:
    """Engines of families, each made once, below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.subject = cache(self._subject)
        self.mtp = cache(self._mtp)
        self._draft_engine = cache(self._make_draft_engine)

    def config(self, family: str, method: str, tp_size: int) -> tuple[Subject, dict[str, Any] | None]:
        """An engine, and how its sessions draft. A family's ``own`` method is MTP; if it has none, synthetic drafts."""
        if method == "own" and family in WITH_MTP:
            subject, models = self.mtp(family, tp_size)
            return subject, models.drafting()
        draft_model = {"method": "draft_model", "model": self._draft_engine(), **DRAFTS}
        configs = {"none": None, "ngram": NGRAM, "suffix": SUFFIX, "own": SYNTHETIC, "draft_model": draft_model}
        return self.subject(family, tp_size), configs[method]

    def _built(self, tp_size: int) -> dict[str, Any]:
        limits = {**BUILT, "max_num_tokens": 96, "gather_context_logits": False, "tp_size": tp_size}
        return limits | ({"max_lora_rank": 8} if tp_size == 1 else {})  # adapters are for engines of one device

    def _subject(self, family: str, tp_size: int) -> Subject:
        root = self._root / f"{family}-{tp_size}"
        save_tiny_model(family, root / "model", **FOR_RANKS.get(family, {}))
        convert_checkpoint(str(root / "model"), root / "checkpoint", "float32")
        build_engine(root / "checkpoint", root / "engine", **self._built(tp_size))
        return Subject(root / "engine", self._adapters(root, family) if tp_size == 1 else [])

    def _mtp(self, family: str, tp_size: int) -> tuple[Subject, Models]:
        root = self._root / f"{family}-{tp_size}-mtp"
        models = Models(root, family, **self._built(tp_size))
        return Subject(models.engine, self._adapters(root, family) if tp_size == 1 else []), models

    def _adapters(self, root: Path, family: str) -> list[LoRARequest]:
        """An adapter of attention."""
        model = AutoModelForCausalLM.from_pretrained(root / "model", attn_implementation="eager")
        names = ["kv_a_proj_with_mqa"] if family == "kimi_linear" else ["q_proj", "v_proj"]
        adapted = with_adapter(model, 1, r=4, lora_alpha=6, target_modules=names)
        adapted.save_pretrained(str(root / "adapter"))
        return [LoRARequest("adapter", 1, str(root / "adapter"))]

    def _make_draft_engine(self) -> Path:
        root = self._root / "draft"
        save_tiny_model("llama", root / "model", seed=1, num_hidden_layers=1)
        convert_checkpoint(str(root / "model"), root / "checkpoint")
        build_engine(root / "checkpoint", root / "engine", **{**self._built(1), "max_lora_rank": 0, "max_draft_len": 0})
        return root / "engine"


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    return Subjects(tmp_path_factory.mktemp("subjects"))


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("max_num_tokens", [16, 96], ids=["chunks", "whole"])
@pytest.mark.parametrize("reuse", [True, False], ids=["reuse", "anew"])
@pytest.mark.parametrize("method", ["none", "ngram", "suffix", "own", "draft_model"])
@pytest.mark.parametrize("family", HYBRID_FAMILIES)
def test_nothing_changes_a_bit(
    subjects: Subjects, family: str, method: str, reuse: bool, max_num_tokens: int, fate: str, tp_size: int
) -> None:
    subject, config = subjects.config(family, method, tp_size)
    options, memory = FATES[fate]
    with LLM(
        subject.engine,
        speculative_config=config,
        max_num_tokens=max_num_tokens,
        kv_cache_config={"enable_block_reuse": reuse, **memory},
        **options,
    ) as llm:
        for _ in range(2):  # the second time prompts may be in the cache, and synthetic drafts are known
            cancelled = range(0, len(subject.alone), 3) if fate == "beside_cancelled" else ()
            handles = llm.session.submit_all(subject.requests())
            for row in cancelled:
                next(iter(handles[row]))
                handles[row].cancel()
            for row, (handle, alone) in enumerate(zip(handles, subject.alone, strict=True)):
                if row not in cancelled:
                    assert described(handle.result()) == alone, row
        stats = llm.get_stats()
    assert reuse or stats.prefix_hit_rate == 0
    assert config is None or stats.speculation.num_accepted[0] > 0
    assert (stats.num_swap_preemptions + stats.num_recompute_preemptions > 0) == bool(memory)
