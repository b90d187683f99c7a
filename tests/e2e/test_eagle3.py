"""EAGLE-3 on tiny models: a head computes what the paper says, and drafts change how soon tokens come, not which."""

import copy
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import PreTrainedModel

from tests.e2e.test_lora import with_adapter
from tests.e2e.test_speculation import LIMITS, described, requests
from tests.eagle import NUM_LAYERS, ODD, TorchHead, expected_counts, save_tiny_head
from tests.models import VOCAB_SIZE, save_tiny_model
from trtllm_lite import LLM, LoRARequest, SamplingParams
from trtllm_lite.builder import build_engine, plan_memory
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, BuildError, ConvertError, LimitError, TrtllmLiteError
from trtllm_lite.runtime.core import core

BLOCK, DRAFTS = 16, 5
BUILT: dict[str, Any] = {
    **LIMITS,
    "tokens_per_block": BLOCK,
    "max_draft_len": DRAFTS,
    "gather_context_logits": True,
}


class Models:
    """A model and its head, converted for each other and built in ``root``."""

    def __init__(self, root: Path, norm_before_residual: bool = False, family: str = "llama", **built: Any) -> None:
        self.root = root
        kinds = {} if family == "llama" else {"layer_types": (["linear_attention"] * 2 + ["full_attention"]) * 2}
        shape = {"num_hidden_layers": NUM_LAYERS, **kinds}
        self.model: PreTrainedModel = save_tiny_model(family, root / "model", **shape)
        tensors = save_tiny_head(root / "head", norm_before_residual=norm_before_residual)
        self.head = TorchHead(tensors, self.model, norm_before_residual)
        convert_checkpoint(str(root / "model"), root / "checkpoint", draft_model_dir=str(root / "head"))
        convert_checkpoint(str(root / "head"), root / "head-checkpoint", target_model_dir=str(root / "model"))
        self.engine, self.head_engine = root / "engine", root / "head-engine"
        build_engine(root / "checkpoint", self.engine, **{**BUILT, **built})
        # The head's steps take more tokens than the model's, so that it has read a prompt when its first draft is due.
        most = max(built.get("max_num_tokens", 0), 64)
        build_engine(root / "head-checkpoint", self.head_engine, **{**BUILT, "max_num_tokens": most})

    def drafting(self, **options: Any) -> dict[str, Any]:
        """Options that verify every draft: with adaptive verification, drafts depend on times, which differ by run."""
        return {
            "method": "eagle3",
            "model": self.head_engine,
            "num_speculative_tokens": DRAFTS,
            "enable_adaptive_verification": False,
            **options,
        }


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("eagle3"))


def stepper(models: Models) -> Callable[..., np.ndarray]:
    """Runs tokens of one sequence through the model or its head over a paged cache; returns the last logits."""
    native = core()
    engines = [native.Engine(str(path / "rank0.engine")) for path in (models.engine, models.head_engine)]
    places, of_state = [5, 0, 7, 2], Manifest.from_json(engines[0].manifest).kv_cache.groups[-1].blocks
    state = -(-8 // of_state) * of_state  # behind the blocks of the attention layers
    target = native.open_executor([engines[0]], num_blocks=state + of_state)
    head = native.open_executor([engines[1]], num_blocks=state + of_state, features_of=target)
    tables = [places, [state] * len(places)] if of_state > 1 else [places]

    def run(tokens: list[int], past: int, num_logits: int = 0, of_head: bool = False) -> np.ndarray:
        lengths = [np.array([number], np.int32) for number in (len(tokens), past)]
        wanted = np.arange(len(tokens) - num_logits, len(tokens), dtype=np.int32)
        executor, table = (head, [places]) if of_head else (target, tables)
        inputs = [np.array(tokens, np.int32), *lengths, np.array(table, np.int32), wanted]
        logits: np.ndarray = native.step(executor, *inputs)
        return logits

    return run


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_a_head_computes_what_the_paper_says(norm_before_residual: bool, tmp_path: Path) -> None:
    models = Models(tmp_path, norm_before_residual)
    run, head = stepper(models), models.head
    tokens = np.random.default_rng(0).integers(3, VOCAB_SIZE, 37).tolist()
    for first, end in ((0, 21), (21, 36)):  # the newest token is not computed when a head drafts its successor
        run(tokens[first:end], first)
    features, follow = head.features(tokens)[:-1], tokens[1:]
    run(tokens[:18], 0, of_head=True)
    found = run(tokens[18:], 18, len(tokens) - 18, of_head=True)
    known, others = head.known.numpy(), np.setdiff1d(np.arange(VOCAB_SIZE), head.known.numpy())
    expected = head.logits(head.hidden(features, follow)).numpy()[17:]
    np.testing.assert_allclose(found[:, known], expected, rtol=1e-4, atol=1e-4)
    assert np.all(found[:, others] < -1e29)
    for drafted in (9, 300, 44):
        hidden = head.hidden(features, follow)
        features, follow = torch.cat([features, hidden[-1:]]), [*follow, drafted]
        found = run([drafted], len(follow), 1, of_head=True)
        expected = head.logits(head.hidden(features, follow)).numpy()[-1]
        np.testing.assert_allclose(found[0, known], expected, rtol=1e-4, atol=1e-4)


def run_network(checkpoint: Path, tokens: list[int], **features: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs of a network in onnxruntime for one sequence, by name."""
    session = onnxruntime.InferenceSession(checkpoint / "network.onnx", providers=["CPUExecutionProvider"])
    count = len(tokens)
    inputs = {
        "input_ids": np.array([tokens]),
        "position_ids": np.arange(count)[None],
        "past_lens": np.zeros(1, np.int64),
        **features,
    }
    caches = {value.name for value in session.get_inputs()} - set(inputs)
    inputs |= {name: np.zeros((1, ODD.kv_heads, count, ODD.head_dim), np.float32) for name in caches}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def test_networks_compute_what_the_paper_says(models: Models) -> None:
    head, tokens = models.head, np.random.default_rng(1).integers(3, VOCAB_SIZE, 20).tolist()
    features = head.features(tokens).numpy()
    found = run_network(models.root / "checkpoint", tokens)["features"][0]
    np.testing.assert_allclose(found, features, rtol=1e-4, atol=1e-4)
    before = np.concatenate([np.zeros_like(features[:1]), features[:-1]])[None]
    found = run_network(models.root / "head-checkpoint", tokens, features=before)
    hidden = head.hidden(torch.tensor(features[:-1]), tokens[1:])
    np.testing.assert_allclose(found["hidden"][0, 1:], hidden.numpy(), rtol=1e-4, atol=1e-4)
    known = found["logits"][0, 1:][:, head.known.numpy()]
    np.testing.assert_allclose(known, head.logits(hidden).numpy(), rtol=1e-4, atol=1e-4)


def test_features_are_of_the_stream_that_the_model_was_trained_with(tmp_path: Path) -> None:
    """Granite's network scales the residual stream by a factor, which must not be in the features."""
    model = save_tiny_model("granite", tmp_path / "model", num_hidden_layers=NUM_LAYERS)
    head = TorchHead(save_tiny_head(tmp_path / "head"), model)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", draft_model_dir=str(tmp_path / "head"))
    tokens = np.random.default_rng(1).integers(3, VOCAB_SIZE, 20).tolist()
    found = run_network(tmp_path / "checkpoint", tokens)["features"][0]
    np.testing.assert_allclose(found, head.features(tokens).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
def test_a_head_changes_nothing(models: Models, policy: str) -> None:
    cache = {"max_tokens": 256, "host_cache_size": 1 << 20 if policy == "MAX_UTILIZATION" else None}
    options: dict[str, Any] = {"kv_cache_config": cache, "scheduler_config": {"capacity_scheduler_policy": policy}}
    outputs = []
    for config in (None, models.drafting(), models.drafting(enable_adaptive_verification=True)):
        with LLM(models.engine, speculative_config=config, **options) as llm:
            for _ in range(2):  # prompts are in the cache the second time
                cancelled = llm.session.submit_all(requests())
                handles = llm.session.submit_all(requests())
                for handle in cancelled[::2]:
                    handle.cancel()
                outputs.append([described(handle.result()) for handle in handles])
                for handle in cancelled:
                    handle.result()
            stats = llm.get_stats()
        preempted = stats.num_swap_preemptions + stats.num_recompute_preemptions
        assert (preempted > 0) == (policy == "MAX_UTILIZATION")
        if config and not config["enable_adaptive_verification"]:
            assert stats.speculation.num_drafts > 500
            assert stats.speculation.num_accepted[4] > 10
    assert all(output == outputs[0] for output in outputs[1:])


def test_the_drafts_of_a_head_are_those_of_the_paper(models: Models) -> None:
    """Few tokens are allowed, so that about half of the drafts are accepted, and wrong inputs of the head would show.

    Prompts come in chunks, share prefixes and blocks, and end within blocks and at their ends.
    """
    allowed = [*models.head.known[20:22].tolist(), 390]  # the head does not know the last token
    assert 390 not in models.head.known
    prompt = np.random.default_rng(0).integers(3, VOCAB_SIZE, 47).tolist()
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, allowed_token_ids=allowed)
    counts, num_cached = np.zeros((2, DRAFTS), int), []
    with LLM(models.engine, speculative_config=models.drafting()) as llm:
        for length in (47, 32, 47, 31, 3, 1):
            output = llm.generate({"prompt_token_ids": prompt[:length]}, params)
            counts += expected_counts(models.head, prompt[:length], output.outputs[0].token_ids, set(allowed), DRAFTS)
            num_cached.append(output.metrics.num_cached_tokens)
        speculation = llm.get_stats().speculation
    found = np.array([speculation.num_drafted[:DRAFTS], speculation.num_accepted[:DRAFTS]])
    np.testing.assert_array_equal(found, counts)
    assert 0.1 < speculation.acceptance[0] < 0.9
    assert num_cached == [0, 16, 32, 16, 0, 0]


def test_a_head_drafts_for_requests_with_adapters(models: Models, tmp_path: Path) -> None:
    build_engine(models.root / "checkpoint", tmp_path / "engine", **BUILT, max_lora_rank=8)
    adapted = with_adapter(copy.deepcopy(models.model), 5, r=6, lora_alpha=9, target_modules="all-linear")
    adapted.save_pretrained(str(tmp_path / "adapter"))
    lora, prompt = LoRARequest("random", 1, str(tmp_path / "adapter")), list(range(5, 40))
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True, allowed_token_ids=[20, 21, 390])
    found = []
    for config in (None, models.drafting()):
        with LLM(tmp_path / "engine", speculative_config=config) as llm:
            outputs = llm.generate([prompt] * 4, params, lora_request=[lora, None] * 2)
            found.append([output.outputs[0].token_ids for output in outputs])
            speculation = llm.get_stats().speculation
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
    assert speculation.num_accepted[0] > 0


def test_sequences_of_one_prompt(models: Models) -> None:
    prompt = {"prompt_token_ids": list(range(5, 40))}
    several = SamplingParams(n=4, max_tokens=30, temperature=0.8, seed=3, ignore_eos=True)
    search = SamplingParams(n=3, max_tokens=10, use_beam_search=True)
    found = []
    for config in (None, models.drafting()):
        with LLM(models.engine, speculative_config=config) as llm:
            outputs = [*llm.generate([prompt, prompt], several), llm.generate(prompt, search)]
            found.append([completion.token_ids for output in outputs for completion in output.outputs])
    assert found[0] == found[1]


def test_the_cache_holds_features(models: Models) -> None:
    """A block of the model holds features and a block of the head does not; both are counted in the memory limit."""
    plans = [plan_memory(models.root / name, **BUILT) for name in ("checkpoint", "head-checkpoint")]
    with LLM(models.engine) as llm:
        own = llm.session.manifest.kv_cache
    layer = 2 * prod(own.groups[0].caches[0].shape) * BLOCK * 4
    assert own.bytes_per_block == NUM_LAYERS * layer + 60 * BLOCK * 4
    assert [plan.kv_cache for plan in plans] == [own.bytes_per_block * own.num_blocks, layer * own.num_blocks]
    config = {"max_gpu_total_bytes": 16 * (own.bytes_per_block + layer)}
    with LLM(models.engine, speculative_config=models.drafting(), kv_cache_config=config) as llm:
        assert llm.session.limits.num_blocks == 16


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "draft_model"}, ArgumentError, "is the engine of a head: pass method eagle3"),
        ({"model": "engine"}, ArgumentError, "is the engine of a model of its own: pass method draft_model"),
        ({"num_speculative_tokens": 6}, LimitError, "num_speculative_tokens=6 exceeds"),
        ({"model": None}, ArgumentError, "model of speculative_config is None: expected an engine's directory"),
        (
            {"target": "plain"},
            ArgumentError,
            "it reads features .*, which the engine that it drafts for keeps, found",
        ),
        ({"max_num_tokens": 35}, LimitError, "max_num_tokens of at least 36, found 35"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(
    models: Models, options: dict[str, Any], error: type[TrtllmLiteError], message: str, tmp_path: Path
) -> None:
    config, target = models.drafting(), models.engine
    match options:
        case {"model": "engine"}:
            config["model"] = models.engine
        case {"target": "plain"}:
            target = tmp_path / "plain"
            convert_checkpoint(str(models.root / "model"), tmp_path / "checkpoint")
            build_engine(tmp_path / "checkpoint", target, **BUILT)
        case {"max_num_tokens": number}:
            config["model"] = tmp_path / "head"
            build_engine(models.root / "head-checkpoint", tmp_path / "head", **{**BUILT, "max_num_tokens": number})
        case _:
            config |= options
    with pytest.raises(error, match=message):
        LLM(target, speculative_config=config)


def test_a_head_takes_no_adapters(models: Models, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"max_lora_rank is 8: a head or a layer that drafts .* takes no adapters"):
        build_engine(models.root / "head-checkpoint", tmp_path / "engine", **BUILT, max_lora_rank=8)


def test_a_head_does_not_run_alone(models: Models) -> None:
    with pytest.raises(ArgumentError, match=r"it reads features .*, found no engine that keeps them"):
        LLM(models.head_engine)


@pytest.mark.parametrize("name", ["checkpoint", "head-checkpoint"])
def test_tensorrt_is_refused_by_name(models: Models, name: str, tmp_path: Path) -> None:
    limits = BUILT | {"max_draft_len": 0}
    with pytest.raises(BuildError, match=r"features for a draft head, which engines of TensorRT neither keep"):
        build_engine(models.root / name, tmp_path / "engine", **limits, target="sm_89", backend="tensorrt")


def test_models_with_windows_are_refused(tmp_path: Path) -> None:
    save_tiny_model("mistral", tmp_path / "model", num_hidden_layers=NUM_LAYERS)
    save_tiny_head(tmp_path / "head")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", draft_model_dir=str(tmp_path / "head"))
    with pytest.raises(BuildError, match=r"features for a head .* and attention windows"):
        build_engine(tmp_path / "checkpoint", tmp_path / "engine", **BUILT)


def test_models_that_do_not_fit_are_not_converted(models: Models, tmp_path: Path) -> None:
    model, head = str(models.root / "model"), str(models.root / "head")
    with pytest.raises(ConvertError, match=r"missing \(1\): embed_tokens.weight"):
        convert_checkpoint(head, tmp_path / "checkpoint")
    with pytest.raises(ConvertError, match=r"to be an EAGLE-3 head with fc.weight of shape .*, found none"):
        convert_checkpoint(model, tmp_path / "checkpoint", draft_model_dir=model)
    with pytest.raises(ConvertError, match="--draft_model_dir with a model, found it with a head"):
        convert_checkpoint(head, tmp_path / "checkpoint", draft_model_dir=head)
    with pytest.raises(ConvertError, match=r"--target_model_dir with a head, .* found it with a model of .* llama"):
        convert_checkpoint(model, tmp_path / "checkpoint", target_model_dir=model)
    save_tiny_head(tmp_path / "head", eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 6]})
    with pytest.raises(ConvertError, match=r"3 different numbers of layers from 0 to 5, found \[1, 3, 6\]"):
        convert_checkpoint(model, tmp_path / "checkpoint", draft_model_dir=str(tmp_path / "head"))
