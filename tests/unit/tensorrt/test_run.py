"""Engines of TensorRT are run: everything but TensorRT and CUDA themselves, which stand-ins replace."""

import ast
import gc
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from tests.models import VOCAB_SIZE, round_matrices, tiny_model
from tests.tolerances import GPU_TOLERANCES, assert_close
from tests.unit.tensorrt import fake_tensorrt
from tests.unit.tensorrt.conftest import GPU
from tests.unit.tensorrt.fake_cuda import FakeCuda
from tests.unit.tensorrt.fake_tensorrt import FakeTensorRt
from tests.unit.tensorrt.shapes import overrides
from trtllm_lite import LLM, SamplingParams, _core
from trtllm_lite.cli import cli
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import DeviceError, EngineError, LimitError
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.sequence_runner import SequenceRunner
from trtllm_lite.runtime.tensorrt.network import open_network

_PROMPTS = [[5, 90, 17, 300, 44, 8, 211, 3, 60] * 3, [7, 7, 130, 2], [11], [35, 2, 9], [390, 18]]
_LENGTHS = [6, 20, 3, 11, 8]


def _expected(family: str, ids: list[int]) -> np.ndarray:
    """The logits [tokens, vocab] of transformers."""
    model = round_matrices(tiny_model(family, **overrides(family)), "float16")
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "qwen3"])
def test_requests_get_the_logits_of_transformers(family: str, trt: FakeTensorRt, build: Callable[..., Path]) -> None:
    """More requests than fit into a batch, of unequal lengths; the longest prompt takes two steps."""
    llm = LLM(build(family))
    params = [
        SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, return_generation_logits=True)
        for length in _LENGTHS
    ]
    for prompt, length, output in zip(_PROMPTS, _LENGTHS, llm.generate(_PROMPTS, params), strict=True):
        completion = output.outputs[0]
        assert len(completion.token_ids) == length
        expected = _expected(family, [*prompt, *completion.token_ids])[len(prompt) - 1 : -1]
        assert_close(completion.generation_logits, expected, "float16", table=GPU_TOLERANCES)
    context, generation = trt.contexts
    assert {step["input_ids"][0] for step in context.steps} == {1}
    assert max(step["input_ids"][1] for step in context.steps) == 16
    assert {step["input_ids"][0] for step in generation.steps} == {1, 2, 3}
    assert {step["input_ids"][1] for step in generation.steps} == {1}


def test_generation_has_a_graph_and_both_share_a_workspace(trt: FakeTensorRt, build: Callable[..., Path]) -> None:
    runner = ModelRunner.from_dir(build())
    context, generation = trt.contexts
    assert (context.config.cuda_graph_strategy, generation.config.cuda_graph_strategy) == ("disabled", "whole")
    assert context.workspace == generation.workspace
    assert runner.session.executor.memory["kv_cache"] == 3 * 2 * 2 * 2 * 64 * 32 * 2
    assert runner.session.executor.memory["workspace"] == 4096 + 3 * VOCAB_SIZE * 4


def test_a_build_asks_for_room_for_its_network(
    trt: FakeTensorRt, build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    del trt
    asked: list[int] = []
    monkeypatch.setattr("trtllm_lite.builder.build.require_space", lambda _, num_bytes: asked.append(num_bytes))
    engine = _core.Engine(str(build() / "rank0.engine"))
    assert asked == [len(engine.network("tensorrt"))]


def test_a_closed_session_gives_its_memory_back(trt: FakeTensorRt, build: Callable[..., Path]) -> None:
    llm = LLM(build())
    assert trt.cuda.memory
    llm.shutdown()
    trt.contexts.clear()
    del llm
    gc.collect()
    assert not trt.cuda.memory


def test_beams_copy_rows(trt: FakeTensorRt, build: Callable[..., Path]) -> None:
    """If both beams continue one earlier beam, its row is copied; each goes on with its own text."""
    runner, prompt = ModelRunner.from_dir(build()), _PROMPTS[1]
    found = runner.generate([prompt], max_new_tokens=12, num_beams=2, length_penalty=0.0, end_id=-1, return_dict=True)
    assert trt.contexts
    for beam, score in zip(found["output_ids"][0], found["sequences_scores"][0], strict=True):
        logprobs = torch.log_softmax(torch.tensor(_expected("llama", beam.tolist())), -1)[len(prompt) - 1 : -1]
        expected = logprobs.gather(1, torch.tensor(beam[len(prompt) :])[:, None].long()).sum().item()
        assert score == pytest.approx(expected, rel=1e-3)


def test_the_logits_of_prompts(trt: FakeTensorRt, build: Callable[..., Path]) -> None:
    runner = SequenceRunner(build(gather_context_logits=True))
    found = np.concatenate(list(runner.logits(np.array(_PROMPTS[0], np.int32), most=16)))
    assert_close(found, _expected("llama", _PROMPTS[0]), "float16", table=GPU_TOLERANCES)
    assert runner.output("logits", begin=1)[1].size == 10 * VOCAB_SIZE * 4
    assert len(trt.contexts[0].steps) == 2


def test_rows_are_copied_saved_and_loaded(trt: FakeTensorRt, build: Callable[..., Path]) -> None:
    """A sequence continues in a copy of its row, and in a row loaded from what was saved before others overwrote it."""
    assert not trt.contexts
    engine = _core.Engine(str(build() / "rank0.engine"))
    manifest = Manifest.from_json(engine.manifest)
    network = open_network(engine, manifest, 3)
    logits = np.zeros((3, VOCAB_SIZE), np.float32)

    def step(first_row: int, past: list[int], tokens: list[list[int]], output: int) -> None:
        arrays = (np.array(values, np.int32) for values in (past, tokens, [len(tokens[0]) * len(tokens) - 1], [output]))
        network.step(len(tokens[0]) == 1, first_row, *arrays, logits)

    step(0, [0], [[7, 7, 130]], 0)
    network.copy_row(0, 2)
    saved = np.zeros(manifest.kv_cache.bytes_per_block, np.uint8)
    network.save_row(0, saved)
    step(0, [0], [[9, 8, 300, 5]], 0)
    step(1, [0, 3], [[1], [2]], 2)
    network.load_row(0, saved)
    step(0, [3], [[35]], 1)
    expected = [_expected("llama", [7, 7, 130, 35])[-1], _expected("llama", [7, 7, 130, 2])[-1]]
    assert_close(logits[1:], np.stack(expected), "float16", table=GPU_TOLERANCES)


def test_more_logits_than_were_compiled_for_are_refused(trt: FakeTensorRt, build: Callable[..., Path]) -> None:
    runner = SequenceRunner(build())
    with pytest.raises(LimitError, match=r"logits_indices of \[3\].*for \[1\] to \[1\].*gather_context_logits"):
        list(runner.logits(np.array([1, 2, 3], np.int32), most=3))
    assert not trt.contexts[0].steps


def test_another_gpu_is_refused(trt: FakeTensorRt, build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    del trt
    directory = build()
    monkeypatch.setattr(_core, "cuda_device", lambda: {**GPU, "arch": "sm_120"})
    with pytest.raises(DeviceError, match=r"this GPU is sm_120, and TensorRT built .* for sm_89: .*--target sm_120"):
        ModelRunner.from_dir(directory)


@pytest.mark.parametrize(
    ("refused", "error", "message"),
    [
        ("engine", EngineError, r"1.7.1.0 does not load .* built \(The engine plan file is not.*compatible\)"),
        ("context", DeviceError, "tensorrt_rtx made no context"),
    ],
)
def test_what_does_not_load_says_why(
    refused: str, error: type[Exception], message: str, trt: FakeTensorRt, build: Callable[..., Path]
) -> None:
    directory = build()
    trt.refuses.add(refused)
    with pytest.raises(error, match=message):
        ModelRunner.from_dir(directory)


@pytest.mark.parametrize(
    ("method", "argument", "told", "message"),
    [
        ("get_tensor_name", 0, "ids", r"\['input_ids'\] are missing, \['ids'\] are unknown"),
        ("get_tensor_dtype", "input_ids", "int32", r"input_ids: expected int64 \[any, any\], found int32 \[-1, -1\]"),
        ("get_tensor_dtype", "logits", "float16", r"logits: expected float32 .*, found float16"),
        ("get_tensor_dtype", "past_key.0", "float32", r"past_key\.0: expected float16 .*, found float32"),
        ("get_tensor_dtype", "present_value.1", "bfloat16", r"present_value\.1: expected float16 .*, found bfloat16"),
        ("get_tensor_shape", "past_lens", (-1, -1), r"past_lens: expected int64 \[any\], found int64 \[-1, -1\]"),
        ("get_tensor_shape", "logits", (-1, 398), r"logits: expected .* \[num_logits, 397\], found .* \[-1, 398\]"),
        ("get_tensor_shape", "logits", (4, 397), r"logits: expected .* \[num_logits, 397\], found .* \[4, 397\]"),
        ("get_tensor_shape", "present_key.0", (-1, 2, 65, 32), r"present_key\.0: .* 64, 32\], .* 65, 32\]"),
        ("get_tensor_shape", "past_value.1", (4, 2, 64, 32), r"past_value\.1: expected .*\[num_blocks, 2,.*\[4, 2, 64"),
        ("get_aliased_input_tensor", "present_value.1", None, r"memory of past_value\.1.*, found it in that of None"),
        ("get_aliased_input_tensor", "present_key.0", "past_value.0", r"past_key\.0, .* that of 'past_value\.0'"),
    ],
)
def test_tensors_that_are_not_as_the_manifest_says_are_refused_before_memory_is_taken(
    method: str, argument: Any, told: Any, message: str, trt: FakeTensorRt, build: Callable[..., Path]
) -> None:
    directory = build()
    trt.told[method, argument] = told
    with pytest.raises(EngineError, match=f"{message}.*; build the engine again"):
        ModelRunner.from_dir(directory)
    assert not trt.cuda.memory


def test_extents_that_the_compiler_knows_may_be_those_of_full_steps(
    trt: FakeTensorRt, build: Callable[..., Path]
) -> None:
    """For networks that always compute one row, TensorRT may report that extent as 1."""
    directory = build(max_batch_size=1)
    trt.told |= {("get_tensor_shape", "logits"): (1, 397), ("get_tensor_shape", "past_key.0"): (1, 2, 64, 32)}
    assert ModelRunner.from_dir(directory).generate([[1, 2]], max_new_tokens=2, end_id=-1).shape == (1, 1, 4)
    trt.told["get_tensor_shape", "logits"] = (2, 397)
    with pytest.raises(EngineError, match=r"logits: expected .*, found .*\[2, 397\]"):
        ModelRunner.from_dir(directory)


def test_blocks_of_other_bytes_than_their_caches_are_refused(trt: FakeTensorRt, build: Callable[..., Path]) -> None:
    engine = _core.Engine(str(build() / "rank0.engine"))
    manifest = Manifest.from_json(engine.manifest)
    wrong = replace(manifest, kv_cache=replace(manifest.kv_cache, bytes_per_block=32_764))
    with pytest.raises(EngineError, match=r"expected bytes_per_block 32,768, .* found 32,764"):
        open_network(engine, wrong, 3)
    assert not trt.cuda.memory


def test_a_step_that_fails_ends_its_requests_and_no_others(trt: FakeTensorRt, build: Callable[..., Path]) -> None:
    runner = ModelRunner.from_dir(build())
    trt.refuses.add("step")
    with pytest.raises(EngineError, match=r"tensorrt_rtx refused the step \(no kernel image\)"):
        runner.generate([[1, 2, 3]], max_new_tokens=2)
    trt.refuses.clear()
    trt.cuda.failing.add("cudaStreamSynchronize")
    with pytest.raises(EngineError, match="CUDA's cudaStreamSynchronize failed: cudaErrorOf700"):
        runner.generate([[1, 2, 3]], max_new_tokens=2)
    trt.cuda.failing.clear()
    trt.cuda.queue.clear()
    assert runner.generate([[1, 2, 3]], max_new_tokens=2, end_id=-1).shape == (1, 1, 5)


def test_too_little_memory_names_what_it_is_for(trt: FakeTensorRt, build: Callable[..., Path]) -> None:
    directory = build()
    trt.cuda.capacity = 40_000
    with pytest.raises(LimitError, match=r"not enough memory for the KV cache of .* bytes"):
        ModelRunner.from_dir(directory)


@pytest.mark.parametrize(
    ("missing", "message"),
    [("library", "this engine runs with tensorrt_rtx, which does not load"), ("cuda", "run with cuda-bindings")],
)
def test_missing_packages_are_named(
    missing: str, message: str, trt: FakeTensorRt, build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    del trt
    directory = build()

    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(f"trtllm_lite.runtime.tensorrt.{missing}.import_module", absent)
    with pytest.raises(DeviceError, match=message + r".*pip install 'trtllm_lite\[tensorrt-rtx\]'"):
        ModelRunner.from_dir(directory)


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "--prompt", "12 15", "--max_new_tokens", "4"),
        ("bench", "latency", "--batch_size", "1,2", "--input_len", "8", "--output_len", "9", "--repeats", "1"),
        ("bench", "throughput", "--input_len", "8", "--output_len", "9", "--num_requests", "6"),
        ("eval", "--dataset", "TEXT"),
    ],
)
def test_commands_run_it(
    command: tuple[str, ...],
    trt: FakeTensorRt,
    build: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trtllm_lite.bench.machine._gpu", lambda: (GPU["name"], "580"))
    text = tmp_path / "text.txt"
    text.write_text("12 15 19 200 17 3 9 8 " * 20)
    arguments = [str(text) if argument == "TEXT" else argument for argument in command]
    result = CliRunner().invoke(cli, [*arguments, "--engine_dir", str(build(gather_context_logits=True))])
    assert result.exit_code == 0, result.output
    assert all(context.steps for context in trt.contexts[: 1 if command[0] == "eval" else 2])


def _count(function: Any) -> int:
    """The number of a function's parameters."""
    return len(inspect.signature(function).parameters)


def _documented(method: Any) -> Iterator[int]:
    """The number of parameters of each overload of a method of TensorRT, which its docstring lists."""
    for signature in re.findall(rf"^(?:\d+\. )?({method.__name__}\(.*) -> ", method.__doc__, re.MULTILINE):
        (function,) = ast.parse(f"def {re.sub('<[^>]*>', '0', signature)}: ...").body  # defaults are no Python
        assert isinstance(function, ast.FunctionDef)
        yield len(function.args.args)


def test_stand_ins_have_the_names_and_parameters_of_what_they_stand_for() -> None:
    import tensorrt_rtx
    from cuda.bindings import runtime

    classes = {
        "Runtime": fake_tensorrt.FakeRuntime,
        "ICudaEngine": fake_tensorrt.FakeEngine,
        "IExecutionContext": fake_tensorrt.FakeContext,
    }
    for name, stand_in in classes.items():
        real = getattr(tensorrt_rtx, name)
        methods = {method: made for method, made in vars(stand_in).items() if not method.startswith("_")}
        assert methods, name
        assert methods.keys() <= set(dir(real))
        for method, made in methods.items():
            assert isinstance(made, property) or _count(made) in set(_documented(getattr(real, method))), method
    assert {"set_execution_context_allocation_strategy", "cuda_graph_strategy"} <= set(dir(tensorrt_rtx.IRuntimeConfig))
    fake = FakeTensorRt(FakeCuda())
    own = {"contexts", "refuses", "told", "cuda"}
    assert {name for name in vars(fake) if name not in own} <= set(dir(tensorrt_rtx))
    for names in ("CudaGraphStrategy", "ExecutionContextAllocationStrategy"):
        assert set(vars(getattr(fake, names))) <= set(dir(getattr(tensorrt_rtx, names)))
    for name in (name for name in vars(FakeCuda) if name.startswith("cuda") and name != "cudaMemcpyKind"):
        assert _count(getattr(fake.cuda, name)) == _count(getattr(runtime, name)), name
    assert int(runtime.cudaMemcpyKind(4)) == runtime.cudaMemcpyKind.cudaMemcpyDefault
