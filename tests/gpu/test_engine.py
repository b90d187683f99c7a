"""Engines built for the GPU here, from checkpoint to tokens, against transformers in float32."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.models import HYBRID_FAMILIES, LATENT_FAMILIES, MOE_FAMILIES, NETWORK_FAMILIES, VOCAB_SIZE, save_tiny_model
from tests.timing_caches import save_tiles_first
from tests.tolerances import (
    GPU_TOLERANCES,
    MIXTURE_SHARES,
    OTHER_EXPERTS_TOLERANCES,
    OUTLIER_TOLERANCES,
    SHARES,
    Shares,
    Tolerance,
    assert_close,
    is_close,
)
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.quantize.schemes import FULL_PRECISION
from trtllm_lite.runtime import ModelRunner

SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
WITHOUT_HEAD_DIM = (
    *("phi3", "cohere", "starcoder2", "smollm3", "granite", "olmo2", "olmo3", "gpt_neox", "olmoe", "qwen2_moe"),
    *("granitemoe", "deepseek_v2", "deepseek_v3", "kimi_linear", "lfm2", "lfm2_moe"),
    *(
        "bamba",
        "falcon_h1",
        "granitemoehybrid",
        "cohere2",
        "stablelm",
        "phi",
        "ernie4_5_moe",
        "flex_olmo",
        "glm4_moe_lite",
        "youtu",
    ),
)
_LATENTS: dict[str, Any] = {  # all experts are chosen, so that rounding changes no choice
    **{"num_key_value_heads": 4, "kv_lora_rank": 128, "qk_nope_head_dim": 16, "qk_rope_head_dim": 64},
    **{"v_head_dim": 16, "moe_intermediate_size": 48, "n_routed_experts": 4, "num_experts_per_tok": 4},
}
_MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 24}
_DELTA: dict[str, Any] = {
    **{"linear_num_value_heads": 8, "linear_key_head_dim": 24, "linear_value_head_dim": 48},
    "partial_rotary_factor": 0.5,
}
_SHARED_EXPERT: dict[str, Any] = {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 80}
OWN_SHAPES: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA,
    "deepseek_v2": _LATENTS,
    "deepseek_v3": {**_LATENTS, "q_lora_rank": 24, "n_group": 2, "topk_group": 2},
    "mimo_v2_flash": {
        **{"head_dim": 48, "v_head_dim": 32, "moe_intermediate_size": 48},
        **{"n_routed_experts": 4, "num_experts_per_tok": 4},
    },
    **{family: {"moe_intermediate_size": 48} for family in ("dots1", "ernie4_5_moe", "exaone_moe")},
    **{family: {"moe_intermediate_size": 48} for family in ("glm4_moe", "solar_open", "afmoe", "hy_v3", "mellum")},
    "cohere2_moe": {"intermediate_size": 48, "prefix_dense_intermediate_size": 80},
    "glm4_moe_lite": {**_LATENTS, "q_lora_rank": 24},
    "gemma3n": {"hidden_size_per_layer_input": 16, "laurel_rank": 8, "vocab_size_per_layer_input": VOCAB_SIZE},
    "gemma4": {"global_head_dim": 32, "hidden_size_per_layer_input": 16},
    "gemma4_unified": {"global_head_dim": 32},
    "youtu": {
        **{"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 128, "v_head_dim": 16},
        **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 64},
    },
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 128},
    "granitemoe": {"shared_intermediate_size": 80},
    "kimi_linear": {
        **{name: size for name, size in _LATENTS.items() if name != "n_routed_experts"},
        **{"num_local_experts": 4, "n_group": 2, "topk_group": 2, "linear_num_heads": 8, "linear_head_dim": 24},
    },
    "lfm2": {"block_multiple_of": 32},
    "lfm2_moe": {"moe_intermediate_size": 48},
    "granitemoehybrid": {**_MAMBA, "shared_intermediate_size": 80},
    "llama4": {"intermediate_size": 48, "intermediate_size_mlp": 80},
    "nemotron_h": {
        **{"mamba_num_heads": 8, "mamba_head_dim": 24, "n_groups": 2, "ssm_state_size": 24, "moe_latent_size": 32},
        **{"moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 80},
    },
    # Other choices of SparseMixer lose more: of five experts, transformers in bfloat16 is close in one prompt of 20.
    "phimoe": {"num_local_experts": 2},
    "qwen2_moe": {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 80},
    "qwen3_moe": {"moe_intermediate_size": 48},
    "qwen3_next": {**_SHARED_EXPERT, **_DELTA},
    "qwen3_5": _DELTA,
    "qwen3_5_moe": {**_SHARED_EXPERT, **_DELTA},
}
LIMITS = {"max_batch_size": 20, "max_input_len": 100, "max_seq_len": 128, "max_num_tokens": 160}
# Lengths around the edges of blocks (32 tokens) and of the kernels' tiles.
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 5, 7, 11, 97, 40, 50, 9, 8)
NUM_NEW_TOKENS = 24


@dataclass
class Case:
    """An engine and its reference model."""

    dtype: str
    runner: ModelRunner
    reference: PreTrainedModel

    @property
    def tolerances(self) -> Mapping[str, Tolerance]:
        """The tolerances for every prompt."""
        return OTHER_EXPERTS_TOLERANCES if self.is_mixture else OUTLIER_TOLERANCES

    @property
    def shares(self) -> Shares:
        """The share of prompts that must be within the tolerances."""
        return MIXTURE_SHARES if self.is_mixture else SHARES

    @property
    def is_mixture(self) -> bool:
        """Whether rounding may change which experts are chosen."""
        return hasattr(self.reference.config, "num_experts_per_tok")

    def reference_logits(self, tokens: np.ndarray) -> np.ndarray:
        """float32[len(tokens), vocabulary]."""
        with torch.no_grad():
            return self.reference(torch.from_numpy(tokens).long()[None]).logits[0].numpy()


def in_words_of(family: str, shape: dict[str, Any]) -> dict[str, Any]:
    """``shape`` in the field names of the family's config, without the fields that the config lacks."""
    if family == "gpt2":
        names = {"hidden_size": "n_embd", "intermediate_size": "n_inner", "num_attention_heads": "n_head"}
        return {names[name]: value for name, value in shape.items() if name in names}
    if family == "falcon":
        return {name: value for name, value in shape.items() if name in ("hidden_size", "num_attention_heads")}
    lacking = {"head_dim"} if family in WITHOUT_HEAD_DIM else set()
    if family == "gpt_neox":
        lacking.add("num_key_value_heads")
    return {name: value for name, value in shape.items() if name not in lacking} | OWN_SHAPES.get(family, {})


def make_case(
    family: str,
    dtype: str,
    directory: Path,
    tiled: bool = False,
    qformat: str = FULL_PRECISION,
    kv_cache: tuple[str, float] | None = None,
    plain_keys: bool = False,
    deterministic: bool = False,
    **overrides: Any,
) -> Case:
    """Build a small model of ``family`` below ``directory``; ``overrides`` are fields of its HF config.

    ``tiled``: use tiled products wherever possible. ``kv_cache``: the KV cache's type, fp8 or int8, and its scale, if
    ``plain_keys`` of values alone.
    """
    wide = {"intermediate_size": 128} if tiled else {}
    shape = in_words_of(family, SHAPE | {"head_dim": 32 if family == "qwen3" else 16} | wide) | overrides
    model = save_tiny_model(family, directory / "model", dtype=getattr(torch, dtype), **shape)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    cache = save_tiles_first(directory / "checkpoint", directory / "tiles.json", **LIMITS) if tiled else None
    how: dict[str, Any] = {"qformat": qformat, "target": "sm_90", "input_timing_cache": cache}
    how["deterministic"] = deterministic
    if kv_cache is not None:
        how |= {"kv_cache_dtype": kv_cache[0], "kv_cache_scale": kv_cache[1]}
        how["key_cache_dtype"] = dtype if plain_keys else "auto"
    build_engine(directory / "checkpoint", directory / "engine", **LIMITS, **how)
    return Case(dtype, ModelRunner.from_dir(directory / "engine"), model.float())


DTYPES = ("bfloat16", "float16")
FAMILIES = (*NETWORK_FAMILIES, *LATENT_FAMILIES, *MOE_FAMILIES, *HYBRID_FAMILIES)
KINDS = [(family, dtype, tiled) for family in FAMILIES for dtype in DTYPES for tiled in (False, True)]
KIND_IDS = [f"{family}-{dtype}-{'tiled' if tiled else 'heuristic'}" for family, dtype, tiled in KINDS]


@pytest.fixture(scope="module", params=KINDS, ids=KIND_IDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, dtype, tiled = request.param
    return make_case(family, dtype, tmp_path_factory.mktemp(f"{family}_{dtype}"), tiled)


def prompts() -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(3, VOCAB_SIZE, length).tolist() for length in LENGTHS]


def generate(runner: ModelRunner, batch: list[list[int]], **arguments: Any) -> list[np.ndarray]:
    """The new tokens of each prompt."""
    ids = runner.generate(batch, max_new_tokens=NUM_NEW_TOKENS, end_id=-1, **arguments)
    return [row[0, len(prompt) : len(prompt) + NUM_NEW_TOKENS] for row, prompt in zip(ids, batch, strict=True)]


def test_logits_are_those_of_the_reference(case: Case) -> None:
    check_logits(case, prompts())


def check_logits(case: Case, batch: list[list[int]], table: Mapping[str, Tolerance] | None = None) -> None:
    """Compare greedy continuations of ``batch`` with the reference, teacher-forced.

    If ``table`` is given, every prompt must meet it. Otherwise the case's share of the prompts must meet
    GPU_TOLERANCES, and every prompt the case's own, wider tolerances.
    """
    result = case.runner.generate(
        batch, max_new_tokens=NUM_NEW_TOKENS, end_id=-1, temperature=0, return_dict=True, output_generation_logits=True
    )
    num_close = 0
    for row, prompt in enumerate(batch):
        tokens = result["output_ids"][row, 0, : len(prompt) + NUM_NEW_TOKENS]
        expected = case.reference_logits(tokens)[len(prompt) - 1 : -1]
        found = result["generation_logits"][row][0]
        assert_close(found, expected, case.dtype, f"logits of prompt {row}", table or case.tolerances)
        num_close += is_close(found, expected, (table or GPU_TOLERANCES)[case.dtype])
        np.testing.assert_array_equal(found.argmax(1), tokens[len(prompt) :])
    assert num_close >= case.shares.close * len(batch)


def test_biases_of_every_projection(tmp_path: Path) -> None:
    biased = make_case("llama", "bfloat16", tmp_path, attention_bias=True, mlp_bias=True)
    check_logits(biased, prompts())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [24, 40])
@pytest.mark.parametrize("head_dim", [16, 64])  # prefill attention without wgmma, and with it
def test_chunks_at_temperatures(head_dim: int, chunk: int, dtype: str, tmp_path: Path) -> None:
    """Llama 4 without experts: prompts have up to five chunks, and answers begin further ones."""
    late = {"attention_chunk_size": chunk, "floor_scale": 5, "attn_scale": 0.7, "moe_layers": []}
    case = make_case("llama4", dtype, tmp_path, head_dim=head_dim, **late)
    for batch_size in (20, 9, 1):
        check_logits(case, prompts()[:batch_size], GPU_TOLERANCES)


Continuations = Sequence[np.ndarray]


def assert_same_until_near_ties(
    case: Case, batch: Sequence[list[int]], some: Continuations, others: Continuations
) -> None:
    """Check that two greedy continuations of each prompt are equal up to a near-tie of the reference.

    For mixtures of experts, this must hold only for the case's share of the prompts.
    """
    margins = [parting_margin(case, *prompt) for prompt in zip(batch, some, others, strict=True)]
    num_near = sum(margin <= 2 * GPU_TOLERANCES[case.dtype].relative for margin in margins)
    assert num_near >= case.shares.near_ties * len(batch), margins


def parting_margin(case: Case, prompt: list[int], tokens: np.ndarray, others: np.ndarray) -> float:
    """The reference's preference for one of two tokens where continuations part, relative to its largest logit."""
    different = np.flatnonzero(tokens != others)
    if not len(different):
        return 0.0
    first = different[0]
    logits = case.reference_logits(np.concatenate([prompt, tokens[:first]]).astype(np.int32))[-1]
    return abs(float(logits[tokens[first]] - logits[others[first]])) / float(np.abs(logits).max())


def test_tokens_do_not_depend_on_the_batch(case: Case) -> None:
    batch = prompts()
    together = generate(case.runner, batch, temperature=0)
    ends = list(itertools.accumulate((1, 2, 3, 5, 9)))
    apart = [generate(case.runner, batch[begin:end], temperature=0) for begin, end in itertools.pairwise([0, *ends])]
    assert_same_until_near_ties(case, batch, list(itertools.chain.from_iterable(apart)), together)


def test_sequences_end_in_company(case: Case) -> None:
    """Sequences end in different steps. The card detects an end by itself, and the next step is under way already."""
    batch = prompts()
    endless = generate(case.runner, batch, temperature=0)
    ends = [int(tokens[2 + row % 20]) for row, tokens in enumerate(endless)]
    arguments = {"max_new_tokens": NUM_NEW_TOKENS, "end_id": ends, "temperature": 0, "return_dict": True}
    result = case.runner.generate(batch, **arguments)
    ended = [
        result["output_ids"][row, 0, len(prompt) : result["sequence_lengths"][row][0]]
        for row, prompt in enumerate(batch)
    ]
    for found, end in zip(ended, ends, strict=True):
        assert not (found[:-1] == end).any()
        assert len(found) == NUM_NEW_TOKENS or found[-1] == end
    begins = [tokens[: len(found)] for tokens, found in zip(endless, ended, strict=True)]
    assert_same_until_near_ties(case, batch, begins, ended)


DRAWS = {"temperature": [0.0, 0.7, 1.0, 1.5] * 5, "top_k": [0, 20, 5, 0] * 5, "top_p": [1.0, 0.9, 1.0, 0.8] * 5}
PENALTIES = {
    "repetition_penalty": [1.0, 1.3, 0.9, 1.1] * 5,
    "presence_penalty": [0.5, 0.0, -0.4, 0.0, 0.2] * 4,
    "frequency_penalty": [0.0, 0.3, 0.0, 0.8, 0.1] * 4,
}


@pytest.mark.parametrize("arguments", [DRAWS, DRAWS | PENALTIES], ids=["draws", "penalties"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "cohere"])  # cohere scales its logits
def test_tokens_are_those_of_the_host_sampler(
    family: str, dtype: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    """Requests that ask for logits are sampled on the host. Logits do not depend on who shares a step."""
    case = make_case(family, dtype, tmp_path, deterministic=True, vocab_size=400)
    batch = prompts()
    seeds = list(range(len(batch)))
    on_device = generate(case.runner, batch, random_seed=seeds, **arguments)
    on_host = case.runner.generate(
        batch,
        max_new_tokens=NUM_NEW_TOKENS,
        end_id=-1,
        random_seed=seeds,
        return_dict=True,
        output_generation_logits=True,
        **arguments,
    )["output_ids"]
    for tokens, row, prompt in zip(on_device, on_host, batch, strict=True):
        np.testing.assert_array_equal(tokens, row[0, len(prompt) : len(prompt) + NUM_NEW_TOKENS])


def test_log_probabilities_are_those_of_the_reference(case: Case) -> None:
    batch = prompts()
    result = case.runner.generate(
        batch, max_new_tokens=NUM_NEW_TOKENS, end_id=-1, return_dict=True, output_log_probs=True, **PENALTIES
    )
    errors = []
    for row, prompt in enumerate(batch):
        tokens = result["output_ids"][row, 0, : len(prompt) + NUM_NEW_TOKENS]
        logits = torch.from_numpy(case.reference_logits(tokens)[len(prompt) - 1 : -1])
        chosen = torch.from_numpy(tokens[len(prompt) :]).long()[:, None]
        expected = logits.log_softmax(-1).gather(1, chosen)[:, 0].numpy()
        errors.append(np.abs(result["log_probs"][row][0] - expected).max() / float(logits.abs().max()))
    # A logit's error counts twice: in the logit, and in the sum over all logits.
    assert np.max(errors) <= 2 * case.tolerances[case.dtype].relative
    num_close = sum(error <= 2 * GPU_TOLERANCES[case.dtype].relative for error in errors)
    assert num_close >= case.shares.close * len(batch), errors


def test_same_seed_same_tokens(case: Case) -> None:
    prompt = prompts()[:1]
    first = generate(case.runner, prompt, temperature=1.0, top_k=0, random_seed=7)
    again = generate(case.runner, prompt, temperature=1.0, top_k=0, random_seed=7)
    other = generate(case.runner, prompt, temperature=1.0, top_k=0, random_seed=8)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
