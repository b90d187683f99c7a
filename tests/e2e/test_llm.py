"""LLM on small random models: from a model directory to text, with every output compared with transformers."""

import asyncio
import json
import shutil
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, RepetitionPenaltyLogitsProcessor

from tests.e2e.llm import GREEDY, LIMITS, random_prompts
from tests.tolerances import assert_close
from tests.unit.runtime.doubles import fake_session
from trtllm_lite import LLM, BuildConfig, KvCacheConfig, QuantAlgo, QuantConfig, SamplingParams
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.manifest import Target
from trtllm_lite.errors import ArgumentError, BuildError, ConvertError, LimitError


def log_softmax(model: PreTrainedModel, tokens: list[int]) -> np.ndarray:
    """Log probabilities of the token after each position, float64[len(tokens), vocab]."""
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), dim=-1).numpy()


def greedy(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(log_softmax(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def test_more_prompts_than_the_batch_holds(llm: LLM, reference: PreTrainedModel) -> None:
    prompts = random_prompts(0, 11)
    outputs = llm.generate(prompts, GREEDY)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt_token_ids == prompt
        assert output.outputs[0].token_ids == greedy(reference, prompt, 12)
        assert (output.outputs[0].finish_reason, output.finished, output.error) == ("length", True, None)
    assert len({output.request_id for output in outputs}) == 11


def test_the_second_time_the_engine_is_found(model_dir: Path, llm: LLM, cache: Path, capfd) -> None:
    arguments = {"gather_context_logits": True, "kv_cache_config": KvCacheConfig(tokens_per_block=16), **LIMITS}
    before = sorted(cache.iterdir())
    with LLM(model_dir, **arguments) as again:
        assert again.engine_dir == llm.engine_dir
    assert sorted(cache.iterdir()) == before
    assert capfd.readouterr().err == ""
    with LLM(model_dir, deterministic=True, **arguments) as again:  # every CPU engine is deterministic
        assert again.engine_dir == llm.engine_dir
    with LLM(llm.engine_dir, deterministic=True) as again:
        assert again.engine_dir == llm.engine_dir
    with LLM(model_dir, max_batch_size=2) as other:
        assert other.engine_dir != llm.engine_dir
        # The model's number of positions bounds the default limits.
        assert other.session.limits.max_seq_len == 128
    assert "made " in capfd.readouterr().err


def test_prompts_are_queued_a_few_at_a_time(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = random_prompts(40, 9, longest=20)
    expected = [output.outputs for output in llm.generate(prompts, GREEDY)]
    monkeypatch.setattr("trtllm_lite.llm._MAX_QUEUED", 3)
    outputs = llm.generate(prompts, GREEDY, priority=list(range(9)))
    assert [output.outputs for output in outputs] == expected
    ids = [output.request_id for output in outputs]
    assert ids == sorted(ids, reverse=True)


def test_who_comes_second_waits_for_the_first(model_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directories: list[Path] = []

    def open_and_close() -> None:
        with LLM(model_dir, max_batch_size=5) as llm:
            directories.append(llm.engine_dir)

    threads = [threading.Thread(target=open_and_close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(directories) == 3
    assert len(set(directories)) == 1
    assert capfd.readouterr().err.count("made ") == 1


def test_a_changed_model_is_another_engine(model_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(model_dir, tmp_path / "model")
    with LLM(tmp_path / "model", max_batch_size=3) as copied, LLM(model_dir, max_batch_size=3) as original:
        assert copied.engine_dir == original.engine_dir
    config = tmp_path / "model" / "generation_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "repetition_penalty": 1.5}))
    with LLM(tmp_path / "model", max_batch_size=3) as changed:
        assert changed.engine_dir != original.engine_dir


def test_a_damaged_engine_is_made_again(model_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with LLM(model_dir, max_batch_size=3) as first:
        directory = first.engine_dir
        expected = first.generate([5, 6, 7], GREEDY).outputs[0].token_ids
    engine = directory / "rank0.engine"
    data = bytearray(engine.read_bytes())
    data[-100] ^= 1
    engine.unlink()  # the file that the first engine has mapped stays valid
    engine.write_bytes(data)
    with LLM(model_dir, max_batch_size=3) as second:
        assert second.generate([5, 6, 7], GREEDY).outputs[0].token_ids == expected
    assert f"{directory} is damaged and made again" in capfd.readouterr().err


def test_config_keys_are_ignored_on_request(model_dir: Path, llm: LLM, tmp_path: Path) -> None:
    model = shutil.copytree(model_dir, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "flavour": "salty"}))
    with pytest.raises(ConvertError, match=r"flavour: 'salty' is not mapped .*ignore_config_keys of LLM"):
        LLM(model, **LIMITS)
    with LLM(model, ignore_config_keys=["flavour"], **LIMITS) as ignoring:
        assert ignoring.session.manifest.model.ignored_config_keys == ["flavour"]
        assert ignoring.generate([5, 6, 7], GREEDY).outputs[0].token_ids == (
            llm.generate([5, 6, 7], GREEDY).outputs[0].token_ids
        )
        engine_dir = ignoring.engine_dir
    with LLM(engine_dir, ignore_config_keys=["flavour"]):
        pass


def test_checkpoints_and_engines_run_as_they_are(model_dir: Path, llm: LLM, tmp_path: Path) -> None:
    convert_checkpoint(str(model_dir), tmp_path / "checkpoint")
    expected = llm.generate([5, 6, 7], GREEDY).outputs[0].token_ids
    with LLM(tmp_path / "checkpoint", max_batch_size=2) as built:
        assert built.generate([5, 6, 7], GREEDY).outputs[0].token_ids == expected
        built.save(tmp_path / "engine")
    with LLM(tmp_path / "engine", max_seq_len=64) as loaded:
        assert loaded.engine_dir == tmp_path / "engine"
        assert loaded.generate([5, 6, 7], GREEDY).outputs[0].token_ids == expected
        with pytest.raises(LimitError, match="max_seq_len"):
            loaded.generate([5] * 60, GREEDY)


def test_models_are_quantized_as_configurations_of_other_engines_say(model_dir: Path) -> None:
    build = BuildConfig(max_batch_size=1, max_seq_len=48)
    algorithms = {"quant_algo": QuantAlgo.W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN, "kv_cache_quant_algo": "FP8"}
    with LLM(model_dir, quant_config=QuantConfig(**algorithms), build_config=build) as quantized:
        manifest = quantized.session.manifest
        assert (manifest.qformat, manifest.kv_cache.dtype) == ("int8_sq", "float8_e4m3fn")
        assert (manifest.limits.max_batch_size, manifest.limits.max_seq_len) == (1, 48)
        engine_dir = quantized.engine_dir
    with LLM(model_dir, qformat="int8_sq", kv_cache_dtype="fp8", max_num_seqs=1, max_model_len=48) as same:
        assert same.engine_dir == engine_dir
    with LLM(engine_dir, qformat="int8_sq", kv_cache_dtype="fp8") as given:
        assert len(given.generate([5, 6, 7], GREEDY).outputs[0].token_ids) == 12
    with pytest.raises(ArgumentError, match="qformat is 'int8_wo', but this engine's matrices are int8_sq"):
        LLM(engine_dir, quant_config=QuantConfig(quant_algo="W8A16"))
    with pytest.raises(ArgumentError, match="quant_algo is 'NVFP4': expected one of NO_QUANT, W8A16"):
        LLM(model_dir, quant_config=QuantConfig(quant_algo=QuantAlgo.NVFP4))
    with pytest.raises(ArgumentError, match="max_batch_size here, and max_batch_size is given, too"):
        LLM(model_dir, build_config=build, max_batch_size=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trust_remote_code": True}, "never run"),
        ({"tensor_parallel_size": 2}, "^tensor_parallel_size is 2, but this engine was built with 1:"),
        ({"pipeline_parallel_size": 2}, "^pipeline_parallel_size is 2, but this engine was built with 1:"),
        ({"moe_tensor_parallel_size": 2}, "it is tensor_parallel_size / moe_expert_parallel_size"),
        ({"context_parallel_size": 2}, "tensor_parallel_size, moe_expert_parallel_size and pipeline_parallel_size"),
        ({"target": "sm_90"}, "this engine runs on cpu"),
        ({"dtype": "float16"}, "matrices are float32"),
        ({"gather_context_logits": True}, "built without gather_context_logits"),
        ({"kv_cache_config": KvCacheConfig(tokens_per_block=64)}, "tokens_per_block is 64"),
        ({"kv_cache_config": KvCacheConfig(dtype="fp8")}, "dtype is 'fp8'"),
        ({"max_batchsize": 2}, "did you mean max_batch_size"),
        ({"kv_cache_config": {"dtype": "fp8"}}, "dtype is 'fp8'"),
        ({"kv_cache_config": {"max_token": 3}}, "KvCacheConfig has no argument 'max_token': did you mean max_tokens"),
        ({"kv_cache_config": 5}, "kv_cache_config is 5: expected a KvCacheConfig or a dictionary of its fields"),
        ({"scheduler_config": {"capacity_scheduler_policy": "x"}}, "capacity_scheduler_policy is 'x'"),
        ({"target": 5}, "target is 5: expected auto, cpu or GPU architectures"),
        ({"dtype": None}, "dtype is None: expected auto"),
        ({"tokenizer": 5}, "tokenizer is 5: expected a directory"),
        ({"ignore_config_keys": "flavour"}, "ignore_config_keys is 'flavour': expected a list of keys"),
        ({"ignore_config_keys": [5]}, r"ignore_config_keys is \[5\]: expected a list of keys"),
        ({"ignore_config_keys": ["flavour"]}, "names 'flavour', and the model was converted without ignoring these"),
    ],
)
def test_what_an_engine_is_not(model_dir: Path, arguments: dict[str, Any], message: str) -> None:
    with LLM(model_dir, max_batch_size=3) as plain:
        engine_dir = plain.engine_dir
    with pytest.raises(ArgumentError, match=message):
        LLM(engine_dir, **arguments)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("/nope", ConvertError, r"^expected a Hugging Face directory, .* but '/nope' does not exist"),
        ("a\0b", ArgumentError, r"^model is 'a\\x00b': expected a directory"),
        (5, ArgumentError, "^model is 5: expected a directory"),
        ("/" + "x" * 300_000, ConvertError, "does not exist|File name too long"),
    ],
    ids=["absent", "NUL", "number", "long"],
)
def test_models_that_there_are_not(model: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        LLM(model)
    assert len(str(raised.value)) < 1500
    assert "--model_dir" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor_parallel_size": 17}, "tensor_parallel_size is 17: expected an integer from 1 to 16"),
        ({"pipeline_parallel_size": 17}, "pipeline_parallel_size is 17: expected an integer from 1 to 16"),
        ({"pipeline_parallel_size": 16}, r"^pipeline_parallel_size is 16, .*: pass pipeline_parallel_size \d or less$"),
        (
            {"tensor_parallel_size": 3, "moe_expert_parallel_size": 2},
            r"^moe_expert_parallel_size is 2, by which tensor_parallel_size \(3\) .*: pass a tensor_parallel_size that",
        ),
        (
            {"tensor_parallel_size": 2, "moe_expert_parallel_size": 2},
            "^moe_expert_parallel_size is 2, and the model has no mixtures of experts: leave it out",
        ),
        (
            {"tensor_parallel_size": 2, "max_lora_rank": 8},
            r"^tensor_parallel_size is 2: adapters \(max_lora_rank\) are for engines of one device",
        ),
    ],
)
def test_errors_of_builds_name_the_arguments(model_dir: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=message) as raised:
        LLM(model_dir, **arguments)
    assert "--" not in str(raised.value)


def test_what_is_saved_are_the_files_of_an_engine(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("secret")
    named = {**llm.session.manifest.files, "../secret": "00000000", "/dev/zero": "00000000"}
    monkeypatch.setattr(llm.session, "manifest", replace(llm.session.manifest, files=named))
    for _ in range(2):
        llm.save(tmp_path / "saved" / "engine")
    saved = sorted(path.name for path in (tmp_path / "saved").rglob("*") if path.is_file())
    assert saved == ["config.json", "rank0.engine", "tokenizer.json", "tokenizer_config.json"]


def test_what_no_engine_can_be_is_known_before_one_is_made(
    model_dir: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(cache.glob("*"))
    with pytest.raises(ArgumentError, match="num_threads is given, and the engine runs on a GPU"):
        LLM(model_dir, target="sm_90", num_threads=2)
    assert sorted(cache.glob("*")) == before
    monkeypatch.setattr("trtllm_lite.convert.convert_checkpoint", None)
    with pytest.raises(BuildError, match="the target is 'sm_91': expected cpu, or one or several of sm_80"):
        LLM(model_dir, target="sm_90, sm_91")


@pytest.mark.parametrize(("target", "fits"), [("sm_90,sm_80", True), ("sm_90a", True), ("sm_80, sm_86", False)])
def test_targets_of_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, fits: bool) -> None:
    session = fake_session()
    session.manifest = replace(session.manifest, target=Target("cuda", ("sm_80", "sm_90a")))
    monkeypatch.setattr("trtllm_lite.workflows.wanted_engine.open_model", lambda *_: session)
    (tmp_path / "rank0.engine").touch()
    with nullcontext() if fits else pytest.raises(ArgumentError, match=r"sm_86', but .* on sm_80, sm_90a: leave"):
        LLM(tmp_path, target=target).shutdown()
    session.close()


def test_text_in_text_out(llm: LLM) -> None:
    assert llm.tokenizer is not None
    for prompt, chat in (("the quick", False), ("the quick", True), ([{"role": "user", "content": "dogs"}], True)):
        output = llm.generate(prompt, GREEDY, chat=chat)
        assert output.prompt is not None
        assert output.prompt_token_ids == llm.tokenizer.encode(output.prompt, add_special_tokens=not chat)
        assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)
    assert output.prompt.startswith("<|begin|><|user|>dogs")
    assert llm.generate("the quick", replace(GREEDY, detokenize=False)).outputs[0].text == ""


def test_streaming_adds_up(llm: LLM) -> None:
    whole = llm.generate("the quick fox", GREEDY)
    stream = list(llm.generate_async("the quick fox", GREEDY, streaming=True))
    assert [len(output.outputs[0].token_ids) for output in stream] == list(range(1, 13))
    assert "".join(output.outputs[0].text_diff for output in stream) == whole.outputs[0].text
    assert [token for output in stream for token in output.outputs[0].token_ids_diff] == whole.outputs[0].token_ids
    assert [output.finished for output in stream] == [False] * 11 + [True]
    assert stream[-1].metrics.num_generated_tokens == 12
    assert [output.outputs for output in llm.generate_async("the quick fox", GREEDY)] == [whole.outputs]


def test_coroutines(llm: LLM) -> None:
    prompts = random_prompts(1, 6)
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]

    async def stream(prompt: list[int]) -> list[int]:
        last = [output async for output in llm.generate_async(prompt, GREEDY, streaming=True)][-1]
        return last.outputs[0].token_ids

    async def run() -> None:
        assert await asyncio.gather(*(stream(prompt) for prompt in prompts)) == expected
        assert (await llm.generate_async(prompts[0], GREEDY)).outputs[0].token_ids == expected[0]

    asyncio.run(run())


@pytest.mark.parametrize("max_num_tokens", [5, 64])
@pytest.mark.parametrize("company", [0, 3])
def test_log_probabilities_are_those_of_transformers(
    llm: LLM, reference: PreTrainedModel, max_num_tokens: int, company: int
) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=1.5, seed=3, logprobs=4, prompt_logprobs=2)
    prompt, *others = random_prompts(2, 1 + company, longest=40)
    with LLM(llm.engine_dir, max_num_tokens=max_num_tokens) as small:
        handles = [small.generate_async(other, GREEDY) for other in others]
        (output,) = list(small.generate_async(prompt, params, streaming=True))[-1:]
        assert all(handle.result().finished for handle in handles)
    (completion,) = output.outputs
    expected = log_softmax(reference, prompt + completion.token_ids)
    assert output.prompt_logprobs is not None
    assert completion.logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(prompt)
    rows = [*output.prompt_logprobs[1:], *completion.logprobs]
    following = [*prompt[1:], *completion.token_ids]
    for row, token, wanted, count in zip(rows, following, expected, [2] * (len(prompt) - 1) + [4] * 6, strict=False):
        assert row is not None
        check_logprobs(row, token, wanted, count)
    assert completion.cumulative_logprob == pytest.approx(
        sum(row[token].logprob for row, token in zip(completion.logprobs, completion.token_ids, strict=True))
    )


def check_logprobs(row: dict[int, Any], token: int, expected: np.ndarray, count: int) -> None:
    """Compare one token's entry with the log softmax at its position."""
    order = np.argsort(-expected, kind="stable")
    assert next(iter(row)) == token
    assert set(row) == {token, *order[:count].tolist()}
    for other, entry in row.items():
        assert_close(np.array([entry.logprob]), np.array([expected[other]]), what="logprob")
        assert entry.rank == 1 + int((expected > expected[other]).sum())


def test_logits(llm: LLM, reference: PreTrainedModel) -> None:
    params = replace(GREEDY, return_context_logits=True, return_generation_logits=True, n=2)
    prompt = random_prompts(3, 1)[0]
    output = llm.generate(prompt, params)
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt + output.outputs[0].token_ids])).logits[0].numpy()
    assert_close(output.context_logits, expected[: len(prompt)])
    for completion in output.outputs:
        assert_close(completion.generation_logits, expected[len(prompt) - 1 : -1])


def penalized(
    scores: np.ndarray, prompt: list[int], generated: list[int], repetition: float, presence: float, frequency: float
) -> np.ndarray:
    """transformers' repetition penalty, then OpenAI's formula for the other penalties (over generated tokens only)."""
    history = torch.tensor([prompt + generated])
    processor = RepetitionPenaltyLogitsProcessor(repetition)
    result = processor(history, torch.tensor(scores[None])).numpy()[0]
    counts = np.bincount(generated, minlength=len(scores))
    return result - frequency * counts - presence * (counts > 0)


@pytest.mark.parametrize("penalties", [(1.7, 0.0, 0.0), (1.0, 1.5, 0.0), (1.0, 0.0, 0.9), (0.6, 0.5, -0.5)])
def test_penalties_are_those_of_transformers(
    llm: LLM, reference: PreTrainedModel, penalties: tuple[float, float, float]
) -> None:
    repetition, presence, frequency = penalties
    params = replace(
        GREEDY, repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency, max_tokens=16
    )
    for prompt in random_prompts(4, 2, longest=30):
        tokens = llm.generate(prompt, params).outputs[0].token_ids
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + tokens])).logits[0].numpy()[len(prompt) - 1 :]
        for position, token in enumerate(tokens):
            assert token == penalized(logits[position], prompt, tokens[:position], *penalties).argmax()


def test_bias_bans_and_allowed_tokens(llm: LLM) -> None:
    prompt = random_prompts(5, 1)[0]
    first = llm.generate(prompt, GREEDY).outputs[0].token_ids[0]
    assert llm.generate(prompt, replace(GREEDY, bad_token_ids=[first])).outputs[0].token_ids.count(first) == 0
    assert llm.generate(prompt, replace(GREEDY, logit_bias={7: 100})).outputs[0].token_ids == [7] * 12
    allowed = llm.generate(prompt, replace(GREEDY, allowed_token_ids=[8, 9])).outputs[0].token_ids
    assert set(allowed) <= {8, 9}


def test_same_seed_same_tokens_in_any_company(llm: LLM) -> None:
    prompts = random_prompts(6, 9, longest=40)
    params = [SamplingParams(max_tokens=12, temperature=1.2, top_p=0.95, seed=row) for row in range(9)]
    together = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    for row in (7, 2):
        assert llm.generate(prompts[row], params[row]).outputs[0].token_ids == together[row]
    assert llm.generate(prompts[2], replace(params[2], seed=99)).outputs[0].token_ids != together[2]


def test_several_continuations(llm: LLM) -> None:
    prompts = random_prompts(7, 3, longest=40)
    params = SamplingParams(n=4, max_tokens=8, temperature=1.2, seed=5, ignore_eos=True)
    outputs = llm.generate(prompts, params)
    for output in outputs:
        assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
        assert len({tuple(completion.token_ids) for completion in output.outputs}) == 4
    again = llm.generate(prompts[1], params)
    assert [entry.token_ids for entry in again.outputs] == [entry.token_ids for entry in outputs[1].outputs]
    alone = llm.generate(prompts[1], replace(params, n=1))
    assert alone.outputs[0].token_ids == again.outputs[0].token_ids
    stream = list(llm.generate_async(prompts[1], params, streaming=True))
    assert [entry.token_ids for entry in stream[-1].outputs] == [entry.token_ids for entry in again.outputs]
    assert sum(len(entry.token_ids_diff) for output in stream for entry in output.outputs) == 32


def test_the_best_continuations(llm: LLM) -> None:
    prompt = random_prompts(8, 1)[0]
    params = SamplingParams(n=6, max_tokens=8, temperature=1.2, seed=5, ignore_eos=True, logprobs=0)
    every = sorted(llm.generate(prompt, params).outputs, key=lambda entry: -(entry.cumulative_logprob or 0))
    best = llm.generate(prompt, replace(params, n=2, best_of=6, logprobs=None))
    assert [entry.token_ids for entry in best.outputs] == [entry.token_ids for entry in every[:2]]
    assert [entry.index for entry in best.outputs] == [0, 1]
    assert best.outputs[0].logprobs is None
    with pytest.raises(ArgumentError, match="best_of"):
        llm.generate_async(prompt, replace(params, best_of=7), streaming=True)


def test_prompts_in_dictionaries_and_parts(llm: LLM) -> None:
    expected = llm.generate("the quick", GREEDY).outputs[0]
    single = llm.generate({"prompt": "the quick"}, GREEDY)
    assert (single.prompt, single.outputs[0]) == ("the quick", expected)
    ids = single.prompt_token_ids
    for output in llm.generate([{"prompt_token_ids": ids}, {"prompt_token_ids": ids}], GREEDY):
        assert (output.prompt, output.outputs[0]) == (None, expected)
    assert llm.generate_async({"prompt_token_ids": ids}, GREEDY).result().outputs[0] == expected
    parts = [{"type": "text", "text": "dogs"}, {"type": "text", "text": "cats"}]
    output = llm.generate([{"role": "user", "content": parts}], GREEDY, chat=True, chat_template_kwargs={"x": 1})
    assert "dogs\ncats" in output.prompt
    again = llm.chat([{"role": "user", "content": parts}], GREEDY, chat_template_kwargs={"x": 1})
    assert (again.prompt, again.outputs) == (output.prompt, output.outputs)
    assert llm.get_tokenizer() is llm.tokenizer
    assert repr(llm) == f"LLM({str(llm.engine_dir)!r})"
    page = llm._repr_html_()
    assert str(llm.engine_dir) in page
    assert f'max_batch_size</th><td style="text-align:left">{llm.session.limits.max_batch_size}</td>' in page
    with pytest.raises(ArgumentError, match=r"use LLM\.embed"):
        llm.encode("dogs")
    with pytest.raises(ArgumentError, match="pass chat=True too"):
        llm.generate("dogs", tools=[])


def test_a_stop_string_without_text(llm: LLM) -> None:
    text = llm.generate("the quick", GREEDY).outputs[0].text
    params = replace(GREEDY, stop=text[3:5])
    expected = llm.generate("the quick", params).outputs[0]
    silent = llm.generate("the quick", replace(params, detokenize=False)).outputs[0]
    assert expected.text == text[: text.index(text[3:5])] != ""
    assert (silent.text, silent.stop_reason, silent.token_ids) == ("", text[3:5], expected.token_ids)


def test_text_that_must_not_appear(llm: LLM) -> None:
    text = llm.generate("the quick", replace(GREEDY, max_tokens=32)).outputs[0].text
    letters = sorted({letter for letter in text if letter.isalpha()})[:3]
    for bad in (letters[:1], letters):
        output = llm.generate("the quick", replace(GREEDY, max_tokens=32, bad=bad)).outputs[0]
        assert not set(bad) & set(output.text)
        assert len(output.token_ids) == 32
