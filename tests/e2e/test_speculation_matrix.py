"""Every method of drafting, with prefix reuse, chunks, preemption, grammars and adapters: no bit of a token changes.

``test_hybrid_matrix.py`` has the families with states; here is one, for EAGLE-3.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM

from tests.e2e import test_eagle3 as eagle3
from tests.e2e import test_mtp as mtp
from tests.e2e.llm import random_prompts
from tests.e2e.test_guided_decoding import GUIDED, described
from tests.e2e.test_lora import with_adapter
from tests.e2e.test_speculation import NGRAM, SUFFIX
from tests.models import save_tiny_model
from trtllm_lite import LLM, LoRARequest, SamplingParams
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime.session.request import Request

DRAFTS: dict[str, Any] = {"num_speculative_tokens": 5, "enable_adaptive_verification": False}
BUILT: dict[str, Any] = {**eagle3.BUILT, "max_num_tokens": 96, "max_lora_rank": 8}
# A family other than the usual one stands behind a colon.
METHODS = ("ngram", "suffix", "synthetic", "draft_model", "eagle3", "mtp", "eagle3:qwen3_5")
MEMORY: dict[str, dict[str, Any]] = {
    "enough": {},
    "recompute": {"max_tokens": 144},
    "swap": {"max_tokens": 144, "host_cache_size": 1 << 20},
}
KINDS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.6, seed=5, top_p=0.95, logprobs=2),
    SamplingParams(temperature=0.0, repetition_penalty=1.2),
    SamplingParams(temperature=0.4, seed=6, top_k=20, ignore_eos=True),
)


@dataclass
class Drafting:
    """An engine, how its sessions draft, its adapters, and what it answers to each request alone without drafts."""

    engine: Path
    config: dict[str, Any]
    loras: list[LoRARequest]

    def __post_init__(self) -> None:
        with LLM(self.engine, kv_cache_config={"enable_block_reuse": False}) as llm:
            self.alone = [described(llm.session.submit(request).result()) for request in self.requests()]

    def requests(self) -> list[Request]:
        """Requests with and without grammars, adapters and a common prefix; some texts repeat themselves."""
        made = []
        for row, prompt in enumerate(random_prompts(5, 24, longest=30)):
            params = replace(KINDS[row % 4], max_tokens=24 + row, detokenize=False)
            if row % 3 == 0:
                params = replace(params, guided_decoding=GUIDED[row // 3 % 4], ignore_eos=False)
            elif row % 3 == 1:
                params = replace(params, allowed_token_ids=[20, 21, 22], ignore_eos=True)
            shared = [7, 8, 9] * 6 if row % 2 else []
            lora = (None, *self.loras)[row // 2 % (1 + len(self.loras))]
            made.append(Request(np.asarray([*shared, *prompt], np.int32), params, lora_request=lora))
        return made


def _plain(root: Path) -> Path:
    """An engine of a model for whose drafts no head is needed."""
    save_tiny_model("llama", root / "model")
    convert_checkpoint(str(root / "model"), root / "checkpoint")
    build_engine(root / "checkpoint", root / "engine", **BUILT)
    return root / "engine"


def _draft_model(root: Path) -> dict[str, Any]:
    """The model itself drafts."""
    build_engine(root / "checkpoint", root / "draft-engine", **{**BUILT, "max_lora_rank": 0, "max_draft_len": 0})
    return {"method": "draft_model", "model": root / "draft-engine", **DRAFTS}


def _heads(root: Path, method: str, family: str) -> eagle3.Models | mtp.Models:
    if method == "mtp":
        return mtp.Models(root, **BUILT)
    return eagle3.Models(root, family=family or "llama", **BUILT)


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Drafting]:
    """Return a function that makes what a method needs, once."""
    made: dict[str, Drafting] = {}

    def make(method: str) -> Drafting:
        method, _, family = method.partition(":")
        root = tmp_path_factory.mktemp(method)
        if method in ("eagle3", "mtp"):
            models = _heads(root, method, family)
            engine, config = models.engine, models.drafting()
        else:
            engine = _plain(root)
            synthetic = {"method": "synthetic", "synthetic_acceptance_rates": (0.8, 0.6, 0.6, 0.4, 0.2), **DRAFTS}
            config = {"ngram": NGRAM, "suffix": SUFFIX, "synthetic": synthetic}.get(method) or _draft_model(root)
        loras: list[LoRARequest] = []
        of_attention = ["q_proj", "v_proj"]
        for number, modules in enumerate(
            (of_attention, [*of_attention, "k_proj", "o_proj"] if family else "all-linear"), 1
        ):
            path = root / f"adapter{number}"
            kind = Qwen2ForCausalLM if method == "mtp" else AutoModelForCausalLM  # MiMo is Qwen2 and more
            model = kind.from_pretrained(root / "model", attn_implementation="eager")
            with_adapter(model, number, r=4, lora_alpha=6, target_modules=modules).save_pretrained(str(path))
            loras.append(LoRARequest(path.name, number, str(path)))
        return Drafting(engine, config, loras)

    def once(method: str) -> Drafting:
        if method not in made:
            made[method] = make(method)
        return made[method]

    return once


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("max_num_tokens", [16, 96], ids=["chunks", "whole"])
@pytest.mark.parametrize("reuse", [True, False], ids=["reuse", "anew"])
@pytest.mark.parametrize("method", METHODS)
def test_drafts_change_nothing(
    drafting: Callable[[str], Drafting], method: str, reuse: bool, max_num_tokens: int, memory: str
) -> None:
    of, has_states = drafting(method), ":" in method
    policy = "GUARANTEED_NO_EVICT" if memory == "enough" else "MAX_UTILIZATION"
    with LLM(
        of.engine,
        speculative_config=of.config,
        max_num_tokens=max_num_tokens,
        kv_cache_config={"enable_block_reuse": reuse, **MEMORY[memory]},
        scheduler_config={"capacity_scheduler_policy": policy},
    ) as llm:
        for _ in range(2):  # the second time prompts may be in the cache, and synthetic drafts are known
            handles = llm.session.submit_all(of.requests())
            assert [described(handle.result()) for handle in handles] == of.alone
        stats = llm.get_stats()
    assert stats.speculation.num_accepted[0] > 20
    assert reuse or stats.prefix_hit_rate == 0
    if has_states:  # which take memory beyond max_tokens
        return
    assert (stats.prefix_hit_rate > 0) == reuse
    # Where there is memory to swap to, the times of earlier steps decide whether computing again is faster.
    assert (stats.num_swap_preemptions + stats.num_recompute_preemptions > 0) == (memory != "enough")
