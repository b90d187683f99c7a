"""CPU engines with recurrent layers against transformers: at any cut into steps, after preemption, and swapped out."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.e2e.llm import LIMITS as GUIDED_LIMITS
from tests.e2e.test_generate import check_greedy, generate
from tests.e2e.test_guided_decoding import described, requests
from tests.e2e.test_speculation import NGRAM
from tests.fuzz.engines import taken_apart
from tests.models import GROUP_SIZE, HYBRID_FAMILIES, VOCAB_SIZE, quantize_linear_layers, save_tiny_model
from tests.rounds import rounds
from tests.tolerances import RECURRENT_TOLERANCES, assert_close
from tests.unit.csrc.tiny_engine import TinyEngine
from trtllm_lite import LLM, KvCacheConfig, SamplingParams
from trtllm_lite._core import Engine
from trtllm_lite.builder import build_engine
from trtllm_lite.common.vocabulary import LATENT_ATTENTION, WITH_STATES, cache_names
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.cache_use import cache_use
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import ArgumentError, BuildError, EngineError, LimitError
from trtllm_lite.network.contract import layer_kinds
from trtllm_lite.network.verifier import load_network
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.sequence_runner import SequenceRunner
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.session import Session

GREEDY = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, detokenize=False)
LIMITS = {"max_batch_size": 9, "max_input_len": 330, "max_seq_len": 352, "max_num_tokens": 352, "tokens_per_block": 16}
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 300)  # around blocks, and around the chunks in which transformers computes
LENGTHS_OF_TEXTS = (1, 16, 300)
NUM_NEW_TOKENS = 20
CHUNKS = (9, 13, 64)  # the most tokens of a step
# Sizes with which states take several blocks.
WIDE_STATES: dict[str, dict[str, Any]] = {
    "kimi_linear": {"linear_num_heads": 4, "linear_head_dim": 20},
    **{family: {"conv_L_cache": 9} for family in ("lfm2", "lfm2_moe")},
    **{family: {"linear_value_head_dim": 46} for family in ("qwen3_next", "qwen3_5", "qwen3_5_moe")},
    "bamba": {},
    "falcon_h1": {"mamba_d_state": 40},
    "granitemoehybrid": {},
    "nemotron_h": {},
}


class Case:
    """A tiny model of one family, its engine, and prompts of all lengths, some of which begin alike.

    ``ranks`` says among how many ranks the engine is divided.
    """

    def __init__(self, family: str, directory: Path, **ranks: Any) -> None:
        self.directory = directory
        self.model = save_tiny_model(family, directory / "model", **WIDE_STATES[family])
        convert_checkpoint(str(directory / "model"), directory / "checkpoint")
        build_engine(directory / "checkpoint", directory / "engine", **ranks, **LIMITS)
        common = np.random.default_rng(0).integers(0, VOCAB_SIZE, max(LENGTHS)).tolist()
        self.prompts = [common[:length] for length in LENGTHS]

    @cached_property
    def engine_of_all_logits(self) -> Path:
        """An engine that outputs the logits of every token."""
        engine = self.directory / "engine_of_all_logits"
        build_engine(self.directory / "checkpoint", engine, gather_context_logits=True, **LIMITS)
        return engine

    @cached_property
    def expected_logits(self) -> dict[int, np.ndarray]:
        """transformers' logits of texts, by their lengths."""
        text = torch.tensor(self.prompts[-1:])
        with torch.no_grad():
            return {size: self.model(text[:, :size], use_cache=False).logits[0].numpy() for size in LENGTHS_OF_TEXTS}

    def runner(self, **options: Any) -> ModelRunner:
        return ModelRunner.from_dir(self.directory / "engine", kv_cache_enable_block_reuse=True, **options)

    def check(self, runner: ModelRunner) -> None:
        """Compare all prompts at once, in steps that mix chunks and decode tokens, with transformers."""
        self.check_prompts(runner, self.prompts, NUM_NEW_TOKENS)

    def check_prompts(self, runner: ModelRunner, prompts: list[list[int]], num_new_tokens: int) -> None:
        outputs = generate(runner, prompts, num_new_tokens)
        for prompt, (tokens, logits) in zip(prompts, outputs, strict=True):
            check_greedy(self.model, prompt, tokens, logits)


@pytest.fixture(scope="module", params=HYBRID_FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param))


def test_tokens_equal_transformers(case: Case) -> None:
    runner = case.runner()
    case.check(runner)
    before = runner.session.stats()
    case.check(runner)  # all but the last block of each prompt is known, with its state
    assert runner.session.stats().prefix_hit_rate > before.prefix_hit_rate


@pytest.mark.each_value
@pytest.mark.parametrize("max_num_tokens", [24, 352])
def test_prompts_go_on_from_kept_states(case: Case, max_num_tokens: int) -> None:
    """A turn of a conversation begins with the turns before; others share a part of it, which has no state."""
    runner = case.runner(max_num_tokens=max_num_tokens)
    page, text = LIMITS["tokens_per_block"], case.prompts[-1]
    num_cached = []
    for length in (40, 40, 41, 100, 48, 49, 32, 33, 100, 230):
        result = runner.session.submit(Request(np.array(text[:length], np.int32), GREEDY))
        result.result()
        num_cached.append(result.timings.num_cached_tokens)
        case.check_prompts(runner, [text[:length]], NUM_NEW_TOKENS)
    assert num_cached == [page * blocks for blocks in (0, 2, 2, 2, 2, 2, 0, 2, 6, 6)]


def _cached(case: Case, session: Session, prompts: list[list[int]]) -> list[int]:
    """How many tokens of each prompt, one after the other, were in the cache; the next token is compared, too."""
    found = []
    for prompt in prompts:
        result = session.submit(Request(np.array(prompt, np.int32), GREEDY))
        (first,) = result.result()
        with torch.no_grad():
            assert first.token_id == int(case.model(torch.tensor([prompt]), use_cache=False).logits[0, -1].argmax())
        found.append(result.timings.num_cached_tokens)
    return found


def test_states_are_kept_where_prompts_part(case: Case) -> None:
    """The second prompt shows where a prefix ends that others may share; the third one goes on from there."""
    rng, page = np.random.default_rng(3), LIMITS["tokens_per_block"]
    shared = rng.integers(0, VOCAB_SIZE, 5 * page + 3).tolist()
    prompts = [shared + rng.integers(0, VOCAB_SIZE, length).tolist() for length in (40, 29, 57, 2)]
    with LLM(case.directory / "engine") as llm:
        assert _cached(case, llm.session, prompts) == [0, 0, 5 * page, 5 * page]
        stats = llm.get_stats()
        assert stats.reached_tokens == (3 * 5 * page, 2 * 5 * page)
        assert stats.hit_tokens == 2 * 5 * page


def test_states_are_kept_at_an_interval(case: Case) -> None:
    text, page = case.prompts[-1], LIMITS["tokens_per_block"]
    with LLM(case.directory / "engine", kv_cache_config=KvCacheConfig(state_snapshot_interval=2)) as llm:
        prompts = [text[:150], text[: 4 * page + 9], [*text[: 6 * page + 1], 1, 2]]
        assert _cached(case, llm.session, prompts) == [0, 4 * page, 6 * page]


def test_an_interval_without_states_is_refused(case: Case) -> None:
    for options in ({"enable_block_reuse": False}, {}):
        config = KvCacheConfig(state_snapshot_interval=2, **options)
        with pytest.raises(ArgumentError, match="state_snapshot_interval is 2, and prefixes are not reused"):
            LLM(case.directory / "engine", kv_cache_config=config, enable_chunked_prefill=False)


def test_memory_that_holds_no_state_names_the_limit(case: Case) -> None:
    cache = read_engine(case.directory / "engine").manifest.kv_cache
    needed = sum(group.blocks for group in cache.groups) * cache.bytes_per_block
    message = rf"max_gpu_total_bytes={needed - 1} leaves no room for .* and a state .*\({needed:,} bytes\): raise it"
    with pytest.raises(LimitError, match=message):
        LLM(case.directory / "engine", kv_cache_config=KvCacheConfig(max_gpu_total_bytes=needed - 1))
    with LLM(case.directory / "engine", kv_cache_config=KvCacheConfig(max_gpu_total_bytes=needed)) as llm:
        assert len(llm.session.submit(Request(np.array([1, 2], np.int32), GREEDY)).result()) == 1


def test_a_thousand_tokens(tmp_path: Path) -> None:
    model = save_tiny_model("qwen3_next", tmp_path / "model", max_position_embeddings=1100)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    limits = {"max_batch_size": 2, "max_input_len": 1000, "max_seq_len": 1100, "max_num_tokens": 300}
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **limits)
    prompt = np.random.default_rng(1000).integers(0, VOCAB_SIZE, 1000).tolist()
    runner = ModelRunner.from_dir(tmp_path / "engine")
    for tokens, logits in generate(runner, [prompt, prompt[:7]], NUM_NEW_TOKENS)[:1]:
        check_greedy(model, prompt, tokens, logits)


def test_states_are_kept_while_blocks_are_free(case: Case) -> None:
    """In a small cache kept states give way to those of requests, or are taken over by the request that needs them."""
    limits = case.runner().session.limits
    room = limits.blocks_for(LIMITS["max_seq_len"]) + limits.blocks_for(64)
    runner = case.runner(max_tokens_in_paged_kv_cache=room * LIMITS["tokens_per_block"], max_batch_size=2)
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, VOCAB_SIZE, 120).tolist() for _ in range(3)]
    for number in rng.integers(0, 3, rounds(40)):
        case.check_prompts(runner, [texts[number][: int(rng.integers(1, 120))]], 12)
    assert 0 < runner.session.stats().prefix_hit_rate < 1


@pytest.mark.each_value
@pytest.mark.parametrize("max_num_tokens", CHUNKS)
def test_prompts_in_chunks_lead_to_the_same_tokens(case: Case, max_num_tokens: int) -> None:
    case.check(case.runner(max_num_tokens=max_num_tokens))


@pytest.mark.parametrize("host_cache_size", [0, 1 << 26])
@pytest.mark.parametrize("family", ["bamba", "lfm2", "qwen3_next"])
def test_preempted_sequences_take_back_drafts(family: str, host_cache_size: int, tmp_path: Path) -> None:
    """Drafts change no token, whatever is computed again or comes back from host memory."""
    model = Case(family, tmp_path, max_draft_len=5)
    states = LIMITS["max_batch_size"] * model.runner().session.limits.cache_groups[1][2]
    blocks = model.runner().session.limits.blocks_for
    room = blocks(LIMITS["max_seq_len"]) + 3 * blocks(20) - states
    memory = {"max_tokens": max(room, 8) * LIMITS["tokens_per_block"], "host_cache_size": host_cache_size}
    params = [
        SamplingParams(
            max_tokens=100, temperature=0, ignore_eos=True, detokenize=False, allowed_token_ids=[20, 21, 22]
        ),
        SamplingParams(max_tokens=100, temperature=0.5, seed=5, ignore_eos=True, detokenize=False),
    ]
    requests = [Request(np.array(prompt[:20], np.int32), params[row % 2]) for row, prompt in enumerate(model.prompts)]
    with LLM(model.directory / "engine") as llm:
        expected = [described(llm.session.submit(request).result()) for request in requests]
    with LLM(
        model.directory / "engine",
        speculative_config=NGRAM,
        max_num_tokens=64,
        kv_cache_config=memory,
        scheduler_config={"capacity_scheduler_policy": "MAX_UTILIZATION"},
    ) as llm:
        handles = llm.session.submit_all(requests)
        assert [described(handle.result()) for handle in handles] == expected
        stats = llm.get_stats()
    assert stats.speculation.num_accepted[0] > 20
    assert stats.num_recompute_preemptions + stats.num_swap_preemptions > 0


@pytest.mark.each_value
@pytest.mark.parametrize("host_cache_size", [0, 1 << 26])
def test_preempted_sequences_go_on_from_their_states(case: Case, host_cache_size: int) -> None:
    check_preemption(case, host_cache_size)


def check_preemption(case: Case, host_cache_size: int) -> None:
    """Compare sequences that are preempted, because blocks are few, with transformers."""
    limits = case.runner().session.limits
    states = LIMITS["max_batch_size"] * limits.cache_groups[1][2]
    room = limits.blocks_for(LIMITS["max_seq_len"]) + 3 * limits.blocks_for(20) - states
    runner = case.runner(
        max_tokens_in_paged_kv_cache=max(room, 8) * LIMITS["tokens_per_block"],
        host_cache_size=host_cache_size,
        capacity_scheduler_policy="MAX_UTILIZATION",
        max_num_tokens=64,
    )
    case.check_prompts(runner, [prompt[:20] for prompt in case.prompts], 100)
    stats = runner.session.stats()
    assert stats.num_recompute_preemptions + stats.num_swap_preemptions > 0
    assert (stats.num_swap_preemptions > 0) == (host_cache_size > 0)


def test_the_manifest_says_what_a_state_takes(case: Case) -> None:
    cache = read_engine(case.directory / "engine").manifest.kv_cache
    full, states = cache.groups
    kinds = layer_kinds(load_network(case.directory / "checkpoint").graph)
    with_states = [(number, kind) for number, kind in kinds if kind in WITH_STATES]
    attending = [number for number, kind in kinds if kind not in WITH_STATES]
    attention = "latent" if LATENT_ATTENTION in dict(kinds).values() else "full"
    assert (full.kind, full.layers, full.blocks) == (attention, tuple(attending), 1)
    assert (states.kind, states.layers, states.window) == ("state", tuple(dict(with_states)), 0)
    assert [kept.tensor for kept in states.caches] == [name.plan for name in cache_names(with_states)]
    assert states.blocks > 1
    of_layers = sum(4 * int(np.prod(kept.shape)) for kept in states.caches)
    assert (states.blocks - 1) * cache.bytes_per_block < of_layers <= states.blocks * cache.bytes_per_block
    use = cache_use(cache, LIMITS["max_seq_len"]).groups[1]
    assert use.num_bytes == states.blocks * cache.bytes_per_block
    assert use.describe().startswith(f"{len(with_states)} layers with states, float32: ")


def test_what_states_cannot_do_is_refused(case: Case, tmp_path: Path) -> None:
    runner, kinds = case.runner(), layer_kinds(load_network(case.directory / "checkpoint").graph)
    names = [rf"layers\.{number}" for number, kind in kinds if kind in WITH_STATES]
    with pytest.raises(LimitError, match="2 beams for a model with recurrent layers"):
        runner.generate([[1, 2, 3]], max_new_tokens=2, num_beams=2)
    for options, message in (
        ({"target": "sm_89", "backend": "tensorrt"}, "the target is tensorrt: build with --backend native"),
    ):
        layers = rf"{len(names)} recurrent layers \({', '.join(names)}\)"
        with pytest.raises(BuildError, match=f"has {layers}, and {message}"):
            build_engine(case.directory / "checkpoint", tmp_path / "engine", **options)
    assert not (tmp_path / "engine").exists()


# Sizes of which all kernels take quantized matrices.
EVEN: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 64, "vocab_size": 400},
    **{"linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 48},
    "partial_rotary_factor": 0.5,
}
EVEN_EXPERTS = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 128}


@pytest.mark.each_value
@pytest.mark.parametrize("qformat", ["int8_wo", "int4_wo", "fp8_rowwise"])
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_quantized_engines(family: str, qformat: str, tmp_path: Path) -> None:
    """Engines for GPUs are only built here; those in fp8 also round activations, and those with experts the experts."""
    model = save_tiny_model(family, tmp_path / "model", **EVEN, **(EVEN_EXPERTS if family == "qwen3_5_moe" else {}))
    limits = {"max_batch_size": 2, "max_input_len": 64, "max_seq_len": 96, "max_num_tokens": 32}
    for target, dtype, group_size in (("cpu", "float32", GROUP_SIZE), ("sm_90", "bfloat16", 32)):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / dtype, dtype)
        how = {"target": target, "qformat": qformat, "group_size": group_size}
        build_engine(tmp_path / dtype, tmp_path / target, **limits, **how)
    prompt = np.random.default_rng(50).integers(0, VOCAB_SIZE, 50).tolist()
    [(tokens, logits)] = generate(ModelRunner.from_dir(tmp_path / "cpu"), [prompt], NUM_NEW_TOKENS)
    assert len(tokens) == NUM_NEW_TOKENS
    assert np.isfinite(logits).all()
    if family == "qwen3_5" and qformat != "fp8_rowwise":
        check_greedy(quantize_linear_layers(model, qformat), prompt, tokens, logits, table=RECURRENT_TOLERANCES)


def test_grammars_and_company_change_nothing(tmp_path: Path) -> None:
    """A row whose masks were late would be computed again, from a state that has its token already."""
    save_tiny_model("qwen3_next", tmp_path / "model")
    limits: dict[str, Any] = {**GUIDED_LIMITS, "max_batch_size": 6}
    with LLM(tmp_path / "model", **limits) as llm:
        alone = [described(llm.session.submit(request).result()) for request in requests()]
    with LLM(tmp_path / "model", **limits) as llm:
        handles = llm.session.submit_all(requests())
        assert [described(handle.result()) for handle in handles] == alone


@pytest.mark.each_value
@pytest.mark.parametrize("length", LENGTHS_OF_TEXTS)
@pytest.mark.parametrize("most", [7, 64, LIMITS["max_num_tokens"]])
def test_logits_of_a_whole_text_equal_transformers(case: Case, most: int, length: int) -> None:
    """The way of `eval` and of calibration, which know no requests: one sequence in steps of ``most`` tokens."""
    runner = SequenceRunner(case.engine_of_all_logits, max_len=length)
    found = np.concatenate(list(runner.logits(np.array(case.prompts[-1][:length], np.int32), most)))
    assert_close(found, case.expected_logits[length], table=RECURRENT_TOLERANCES)


def _overlap(engine: TinyEngine) -> None:
    for tensor in engine.plan["tensors"]:
        if "_state." in tensor["name"]:
            tensor["offset"] = 0


def _attend_to_a_state(engine: TinyEngine) -> None:
    names = [tensor["name"] for tensor in engine.plan["tensors"]]
    attentions = ("PagedAttention", "LatentAttention")
    attention = next(call for call in engine.instructions() if call["op"] in attentions)
    cache = next(name for name in attention["operands"] if name in ("key_cache", "latent_cache"))
    attention["operands"][cache] = names.index("conv_state.0")


DAMAGES: dict[str, tuple[Callable[[TinyEngine], None], str]] = {
    "overlap": (_overlap, "expected caches of state that do not overlap"),
    "too few blocks": (lambda e: e.manifest["kv_cache"]["groups"][1].update(blocks=1), "expected states in 1 blocks"),
    "keys in a state": (_attend_to_a_state, "PagedAttention|LatentAttention|key_cache|latent_cache"),
    "no room for drafts": (
        lambda e: e.manifest["limits"].update(max_draft_len=3),
        "expected operators with states that 4 tokens can be taken back from",
    ),
    "a window of states": (lambda e: e.manifest["kv_cache"]["groups"][1].update(window=5), "if and only if the kind"),
    "states first": (lambda e: e.manifest["kv_cache"]["groups"].reverse(), "one group of states at most, after others"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_engines_are_refused(case: Case, damage: str, tmp_path: Path) -> None:
    """What these engines would write lies outside of their states."""
    engine = taken_apart((case.directory / "engine" / "rank0.engine").read_bytes())
    (tmp_path / "rank0.engine").write_bytes(engine.to_bytes())
    Engine(str(tmp_path / "rank0.engine"))
    change, message = DAMAGES[damage]
    change(engine)
    (tmp_path / "rank0.engine").write_bytes(engine.to_bytes())
    with pytest.raises(EngineError, match=message):
        Engine(str(tmp_path / "rank0.engine"))
