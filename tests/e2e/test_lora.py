"""LoRA adapters of requests, against PEFT's merged models in transformers."""

import copy
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.e2e.llm import GREEDY, LIMITS, random_prompts
from tests.models import GROUP_SIZE, quantize_linear_layers, save_tiny_model
from tests.tolerances import assert_close
from trtllm_lite import LLM, KvCacheConfig, LoRARequest, SamplingParams, SchedulerConfig
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import ArgumentError, EngineError, LimitError
from trtllm_lite.runtime import ModelRunner

MAX_RANK = 16
ALL = "all-linear"
IN_GROUPS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
LEAST_CHANGE = 0.1  # the least change of some logit by an adapter
LEARNED_LOSS = 0.05  # mean loss at which a text counts as learned
# Ranks are odd sizes; some modules have a higher rank, some adapters have few modules, one uses rsLoRA.
ADAPTERS = {
    "all": {"r": 5, "lora_alpha": 7, "target_modules": ALL},
    "attention": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "patterns": {
        **{"r": 3, "lora_alpha": 4, "target_modules": ["k_proj", "o_proj", "up_proj", "down_proj"]},
        **{"rank_pattern": {"down_proj": 16}, "alpha_pattern": {"layers.1.self_attn.k_proj": 9}},
    },
    "rslora": {"r": 12, "lora_alpha": 6, "target_modules": ["gate_proj", "q_proj"], "use_rslora": True},
}


def adapted(model_dir: Path, seed: int, **config) -> PreTrainedModel:
    """The model with a random adapter, neither A nor B zero."""
    return with_adapter(AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="eager"), seed, **config)


def with_adapter(model: PreTrainedModel, seed: int, **config) -> PreTrainedModel:
    """``model`` with a random adapter, which can be switched off."""
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


@pytest.fixture(scope="module")
def merged(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[LoRARequest, PreTrainedModel]]:
    """Each adapter, and the model with the adapter merged."""
    found = {}
    for number, (name, config) in enumerate(ADAPTERS.items(), 1):
        model, directory = adapted(model_dir, number, **config), tmp_path_factory.mktemp("adapters") / name
        model.save_pretrained(str(directory))
        found[name] = LoRARequest(name, number, str(directory)), model.merge_and_unload()
    return found


@pytest.fixture(scope="module")
def lora_llm(model_dir: Path) -> Iterator[LLM]:
    """The model with room for two adapters in use and three in memory."""
    cache = KvCacheConfig(tokens_per_block=16)
    sizes = {"max_lora_rank": MAX_RANK, "max_loras": 2, "max_cpu_loras": 3}
    with LLM(model_dir, gather_context_logits=True, kv_cache_config=cache, **sizes, **LIMITS) as llm:
        yield llm


def continuation(model: PreTrainedModel, prompt: list[int], length: int = GREEDY.max_tokens) -> list[int]:
    with torch.inference_mode():
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=length, do_sample=False, eos_token_id=-1)
    return ids[0, len(prompt) :].tolist()


def test_adapters_and_none_in_one_batch_equal_merged_models(lora_llm: LLM, merged, reference: PreTrainedModel) -> None:
    prompts = random_prompts(1, 15)
    kinds = [None, *merged] * 3
    loras = [merged[kind][0] if kind else None for kind in kinds]
    outputs = lora_llm.generate(prompts, GREEDY, lora_request=loras)
    for prompt, kind, output in zip(prompts, kinds, outputs, strict=True):
        model = merged[kind][1] if kind else reference
        assert output.outputs[0].token_ids == continuation(model, prompt), kind
    assert len(lora_llm.get_stats().loaded_loras) <= 3


@pytest.mark.parametrize("name", ADAPTERS)
def test_logits_of_prompts_equal_those_of_the_merged_model(lora_llm: LLM, merged, name: str) -> None:
    lora, model = merged[name]
    (prompt,) = random_prompts(2, 1)
    params = SamplingParams(max_tokens=1, temperature=0, return_context_logits=True)
    actual = lora_llm.generate(prompt, params, lora_request=lora).context_logits
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0].numpy()
    np.testing.assert_allclose(actual, expected, atol=2e-4)


def test_prefixes_are_shared_by_requests_of_one_adapter_alone(lora_llm: LLM, merged) -> None:
    prompt = list(range(3, 60))
    cached = {}
    for turn in ("first", "second"):
        for name in (None, "all", "attention"):
            lora = merged[name][0] if name else None
            cached[turn, name] = lora_llm.generate(prompt, GREEDY, lora_request=lora).metrics.num_cached_tokens
    assert [cached["first", name] for name in (None, "all", "attention")] == [0, 0, 0]
    assert all(cached["second", name] >= 16 for name in (None, "all", "attention"))


def test_a_batch_without_adapters_has_the_bits_of_an_engine_without(lora_llm: LLM, llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, return_context_logits=True)
    for prompt in random_prompts(4, 3):
        ours, plain = lora_llm.generate(prompt, params), llm.generate(prompt, params)
        np.testing.assert_array_equal(ours.context_logits, plain.context_logits)
        assert ours.outputs[0].token_ids == plain.outputs[0].token_ids


def test_an_adapter_that_does_not_load_is_an_error_of_its_requests_alone(lora_llm: LLM, merged, tmp_path: Path) -> None:
    lora, model = merged["all"]
    (prompt,) = random_prompts(5, 1)
    broken = LoRARequest("none", 99, str(tmp_path))
    bad, good = lora_llm.generate([prompt, prompt], GREEDY, lora_request=[broken, lora])
    assert isinstance(bad.error, EngineError)
    assert "adapter_config.json" in str(bad.error)
    assert good.outputs[0].token_ids == continuation(model, prompt)


def test_ranks_above_the_engines_are_refused(lora_llm: LLM, model_dir: Path, tmp_path: Path) -> None:
    adapted(model_dir, 9, r=17, lora_alpha=1, target_modules=["q_proj"]).save_pretrained(str(tmp_path))
    with pytest.raises(LimitError, match=r"rank 17 .* above max_lora_rank 16 .*--max_lora_rank 24"):
        lora_llm.generate([5], GREEDY, lora_request=LoRARequest("large", 98, str(tmp_path)))


def test_a_request_that_waits_for_its_adapter_can_be_cancelled(lora_llm: LLM, merged) -> None:
    long = SamplingParams(max_tokens=60, n=16, temperature=1.0, ignore_eos=True)
    running = [lora_llm.generate_async([7], long, lora_request=merged[name][0]) for name in ("all", "attention")]
    waiting = lora_llm.generate_async([7], long, lora_request=merged["rslora"][0])
    waiting.cancel()
    assert {output.finish_reason for output in waiting.result().outputs} == {"cancelled"}
    assert {len(output.token_ids) for one in running for output in one.result().outputs} == {60}


def test_engines_without_room_refuse_adapters(llm: LLM, merged) -> None:
    with pytest.raises(ArgumentError, match="--max_lora_rank"):
        llm.generate([5], GREEDY, lora_request=merged["all"][0])


def test_one_id_is_one_adapter(lora_llm: LLM, merged) -> None:
    lora = merged["all"][0]
    lora_llm.generate([5], GREEDY, lora_request=lora)
    with pytest.raises(ArgumentError, match="an id of its own"):
        lora_llm.generate([5], GREEDY, lora_request=LoRARequest("other", lora.lora_int_id, lora.lora_path))


def test_a_refused_adapter_is_one_line_on_the_command_line(lora_llm: LLM, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trtllm_lite", "generate", "--prompt", "5", "--lora_dir", str(tmp_path / "none")]
    done = subprocess.run(
        [*command, "--engine_dir", str(lora_llm.engine_dir)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: there is no directory")
    assert done.stderr.count("\n") == 1  # there is no second message about an engine that is never freed


def test_model_runner_numbers_the_adapters_of_lora_dir(lora_llm: LLM, merged, reference: PreTrainedModel) -> None:
    directories = [merged[name][0].lora_path for name in ("all", "rslora")]
    runner = ModelRunner.from_dir(lora_llm.engine_dir, lora_dir=directories)
    prompts = random_prompts(6, 3, longest=20)
    out = runner.generate(
        prompts, max_new_tokens=GREEDY.max_tokens, end_id=-1, lora_uids=["1", "-1", "0"], return_dict=True
    )
    models = (merged["rslora"][1], reference, merged["all"][1])
    for prompt, model, ids in zip(prompts, models, out["output_ids"], strict=True):
        start = len(prompt)
        assert ids[0][start : start + GREEDY.max_tokens].tolist() == continuation(model, prompt)
    with pytest.raises(ArgumentError, match="lora_uids has '2'"):
        runner.generate([[5]], lora_uids=["2"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'"),
        ({"r": -1}, "r is -1"),
        ({"rank_pattern": {"(a+)+$": 2}}, "rank_pattern has the key"),
        ({"r": 6}, "expected A"),
    ],
)
def test_what_no_engine_applies_is_refused(lora_llm: LLM, merged, tmp_path: Path, change, message: str) -> None:
    source = Path(merged["all"][0].lora_path)
    config = json.loads((source / "adapter_config.json").read_text()) | change
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes((source / "adapter_model.safetensors").read_bytes())
    with pytest.raises(EngineError, match=message.replace("(", r"\(")):
        lora_llm.generate([5], GREEDY, lora_request=LoRARequest("changed", 97, str(tmp_path)))


@pytest.mark.parametrize(
    ("family", "qformat"), [("qwen2", "full_prec"), ("gemma2", "full_prec"), ("qwen3", "int8_wo"), ("llama", "int4_wo")]
)
def test_families_and_quantized_weights(family: str, qformat: str, tmp_path: Path) -> None:
    sizes = IN_GROUPS if qformat == "int4_wo" else {}
    model = save_tiny_model(family, tmp_path / "model", **sizes)
    if qformat != "full_prec":
        model = quantize_linear_layers(model, qformat)
    assert_equals_peft(model, ALL, tmp_path, qformat=qformat, group_size=GROUP_SIZE)


# Modules that contain a projection, or that have its rows in another order, by the last part of their names.
MODULES = {
    "phi3": ["qkv_proj", "gate_up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],  # c_proj is in attention and in the MLP
    "gpt_neox": ["query_key_value", "dense", "dense_h_to_4h"],
    "cohere": ["q_proj", "k_proj"],
    "glm4": ["q_proj", "v_proj", "gate_up_proj"],
    "deepseek_v2": ["q_proj", "kv_a_proj_with_mqa", "o_proj"],
    "deepseek_v3": ["q_a_proj", "q_b_proj"],
    "granitemoe": ["shared_mlp.input_linear", "shared_mlp.output_linear"],
    "qwen3_next": ["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj"],
}


@pytest.mark.parametrize("family", MODULES)
def test_modules_are_those_of_the_family(family: str, tmp_path: Path) -> None:
    assert_equals_peft(save_tiny_model(family, tmp_path / "model"), MODULES[family], tmp_path)


@pytest.mark.parametrize("module", ["in_proj_qkvz", "in_proj_ba", "out_proj"])
def test_recurrent_layers_are_adapted_one_projection_at_a_time(module: str, tmp_path: Path) -> None:
    assert_equals_peft(save_tiny_model("qwen3_next", tmp_path / "model"), [module], tmp_path)


def test_adapters_keep_states_of_their_own(tmp_path: Path) -> None:
    """Prefixes, chunks and preemption: requests of one adapter go on from states that the same adapter has made."""
    model = save_tiny_model("qwen3_next", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "float32")
    sizes = {"max_batch_size": 16, "max_input_len": 96, "max_seq_len": 128, "tokens_per_block": 16}
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", max_lora_rank=8, **sizes)
    changed = with_adapter(copy.deepcopy(model), 6, r=4, lora_alpha=9, target_modules=MODULES["qwen3_next"])
    changed.save_pretrained(str(tmp_path / "adapter"))
    lora = LoRARequest("changed", 1, str(tmp_path / "adapter"))
    models = {None: model, lora: changed.merge_and_unload()}
    prompts = [[*range(3, 40), *prompt] for prompt in random_prompts(8, 6, longest=16)]
    loras, params = [lora, None, lora] * 2, replace(GREEDY, max_tokens=70)
    expected = [continuation(models[request], prompt, 70) for prompt, request in zip(prompts, loras, strict=True)]
    # Two prompts fit beside their states, and what both generate does not.
    small = {"max_batch_size": 2, "kv_cache_config": KvCacheConfig(max_tokens=144, host_cache_size=1 << 22)}
    small["scheduler_config"] = SchedulerConfig(capacity_scheduler_policy="MAX_UTILIZATION")
    for options in ({}, small):  # memory for 16 requests, so that nothing is evicted, and for two
        with LLM(tmp_path / "engine", max_num_tokens=40, **options) as llm:
            for _ in range(2):
                outputs = llm.generate(prompts, params, lora_request=loras, use_tqdm=False)
                assert [output.outputs[0].token_ids for output in outputs] == expected
            stats = llm.get_stats()
        if options:
            assert stats.num_recompute_preemptions + stats.num_swap_preemptions > 0
        else:
            assert all(output.metrics.num_cached_tokens >= 32 for output in outputs)


def test_an_expert_that_all_tokens_share_is_adapted(tmp_path: Path) -> None:
    """PEFT takes these names for those of the other experts, so that this adapter is written and merged by hand."""
    model = save_tiny_model("qwen3_next", tmp_path / "model")
    found = {name: one for name, one in model.named_modules() if re.search(r"\.shared_expert\.\w+_proj$", name)}
    generator = torch.Generator().manual_seed(12)
    matrices = {
        name: (torch.randn(3, one.in_features, generator=generator), torch.randn(one.out_features, 3) * 0.1)
        for name, one in found.items()
    }
    write_adapter(tmp_path / "adapter", matrices)
    (prompt,) = random_prompts(13, 1)
    with LLM(tmp_path / "model", max_lora_rank=8, **LIMITS) as llm:
        output = llm.generate(prompt, GREEDY, lora_request=LoRARequest("shared", 1, str(tmp_path / "adapter")))
    assert output.outputs[0].token_ids != continuation(model, prompt)
    with torch.no_grad():
        for name, (a, b) in matrices.items():
            found[name].weight += b @ a
    assert output.outputs[0].token_ids == continuation(model, prompt)


@pytest.mark.parametrize("module", ["linear_attn.conv1d", "mlp.shared_expert_gate", "mlp.experts"])
def test_modules_that_no_projection_belongs_to_are_named(module: str, tmp_path: Path) -> None:
    save_tiny_model("qwen3_next", tmp_path / "model")
    write_adapter(tmp_path / "adapter", {f"model.layers.0.{module}": (torch.ones(3, 60), torch.ones(60, 3))})
    with LLM(tmp_path / "model", max_lora_rank=8, **LIMITS) as llm:
        named = rf"changes 'model\.layers\.0\.{re.escape(module)}', and this engine lets adapters change .*in_proj_qkvz"
        with pytest.raises(EngineError, match=named):
            llm.generate([5], GREEDY, lora_request=LoRARequest("other", 1, str(tmp_path / "adapter")))


def write_adapter(directory: Path, matrices: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Write an adapter of rank and alpha 3 with these matrices A and B of modules."""
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 3}))
    tensors = {
        f"base_model.model.{module}.lora_{which}.weight": matrix
        for module, pair in matrices.items()
        for which, matrix in zip("AB", pair, strict=True)
    }
    save_file(tensors, directory / "adapter_model.safetensors")


def assert_equals_peft(model: PreTrainedModel, modules: str | list[str], directory: Path, **built: object) -> None:
    """Compare logits of the model in ``directory`` with PEFT's, with a random adapter of ``modules`` and without."""
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", "float32")
    options = {"max_lora_rank": 8, "gather_context_logits": True, **built}
    build_engine(directory / "checkpoint", directory / "engine", **options, **LIMITS)
    model = with_adapter(model, 5, r=6, lora_alpha=9, target_modules=modules)
    model.save_pretrained(str(directory / "adapter"))
    runner = ModelRunner.from_dir(directory / "engine", lora_dir=directory / "adapter")
    prompts = random_prompts(7, 2, longest=30)
    out = runner.generate(
        prompts, max_new_tokens=1, end_id=-1, lora_uids=["0", "-1"], output_context_logits=True, return_dict=True
    )
    with torch.inference_mode():
        expected = model(torch.tensor([prompts[0]])).logits[0].numpy()
        with model.disable_adapter():
            unchanged, plain = (model(torch.tensor([prompt])).logits[0].numpy() for prompt in prompts)
    assert_close(out["context_logits"][0], expected, "float32", what="logits with the adapter")
    assert_close(out["context_logits"][1], plain, "float32", what="logits without")
    assert np.abs(expected - unchanged).max() > LEAST_CHANGE


def test_a_trained_adapter_says_what_it_learned(lora_llm: LLM, model_dir: Path, tmp_path: Path) -> None:
    prompt, lesson = [7, 8, 9], [30, 31, 32, 33, 34, 35]
    model = adapted(model_dir, 11, r=8, lora_alpha=16, target_modules=ALL)
    optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], lr=0.005)
    ids = torch.tensor([prompt + lesson])
    labels = ids.clone()
    labels[:, : len(prompt)] = -100
    for _ in range(500):
        loss = model(input_ids=ids, labels=labels).loss
        if loss < LEARNED_LOSS:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < LEARNED_LOSS
    model.save_pretrained(str(tmp_path))
    params = SamplingParams(max_tokens=len(lesson), temperature=0, ignore_eos=True)
    lora = LoRARequest("lesson", 96, str(tmp_path))
    output = lora_llm.generate([prompt, prompt], params, lora_request=[lora, None])
    assert output[0].outputs[0].token_ids == lesson
    assert output[1].outputs[0].token_ids != lesson
