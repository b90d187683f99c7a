"""The models answer as LLM does: text, streams, batches in flight, cancellation, errors."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2

from tests.unit.runtime.doubles import fake_session, greedy_continuation
from tests.unit.triton.stand_in import Request, TritonError, TritonModelException, arguments, read_config
from tests.unit.triton.test_triton_requests import DTYPES, arrays
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.errors import OverloadedError
from trtllm_lite.triton.repository import write_repository

TEXT = "the quick fox"
GREEDY = SamplingParams(max_tokens=6, temperature=0)


def load(repository: Path, name: str, **parameters: str) -> Any:
    """A model of the repository as Triton's Python backend loads it, with further ``parameters``."""
    model = import_module(f"trtllm_lite.triton.{name}").TritonPythonModel()
    args = arguments(repository / name)
    given = ", ".join(f'"{key}": {{"string_value": "{value}"}}' for key, value in parameters.items())
    if given:
        args["model_config"] = args["model_config"].replace('"parameters": {', f'"parameters": {{{given}, ', 1)
    model.initialize(args)
    return model


@pytest.fixture(scope="module")
def engine(repository: Path) -> Iterator[Any]:
    """The model tensorrt_llm."""
    model = load(repository, "tensorrt_llm", num_threads="1")
    yield model
    model.finalize()


@pytest.fixture(scope="module")
def outputs(repository: Path) -> dict[str, Any]:
    """The outputs of tensorrt_llm, by name."""
    return {entry.name: entry for entry in read_config(repository / "tensorrt_llm").output}


@pytest.fixture(scope="module")
def prompt(llm: LLM) -> list[int]:
    """The token ids of TEXT."""
    assert llm.tokenizer is not None
    return llm.tokenizer.encode(TEXT)


def request(prompt: list[int], outputs: Any, **values: Any) -> Request:
    ids = {
        "input_ids": np.array([prompt], np.int32),
        "input_lengths": np.array([[len(prompt)]], np.int32),
    }
    return Request({**arrays(**values), **ids}, list(outputs))


def test_an_answer_is_that_of_llm(engine: Any, outputs: Any, llm: LLM, prompt: list[int]) -> None:
    given = request(prompt, outputs, request_output_len=6, return_log_probs=True)
    assert engine.execute([given]) is None
    (response,) = given.sender.wait()
    expected = llm.generate(TEXT, SamplingParams(max_tokens=6, temperature=0, logprobs=0)).outputs[0]
    found = response.arrays
    assert found["output_ids"].tolist() == [[prompt + expected.token_ids]]
    assert found["sequence_length"].tolist() == [[len(prompt) + 6]]
    assert found["prompt_ids"].tolist() == [prompt]
    assert found["generated_text"].tolist() == [[expected.text.encode()]]
    assert found["finish_reason"].tolist() == [[b"length"]]
    np.testing.assert_allclose(found["cum_log_probs"], [[expected.cumulative_logprob]], rtol=1e-6)
    np.testing.assert_allclose(found["output_log_probs"].sum(), expected.cumulative_logprob, rtol=1e-6)


def test_outputs_are_of_the_types_that_the_configuration_says(engine: Any, outputs: Any, prompt: list[int]) -> None:
    asked = {"return_log_probs": True, "return_context_logits": True, "return_generation_logits": True}
    requests = [
        request(prompt, outputs, request_output_len=3),
        request(prompt, outputs, request_output_len=3, streaming=True),
        request(prompt, outputs, request_output_len=3, beam_width=2),
        request(prompt, outputs, request_output_len=3, runtime_top_k=9, num_return_sequences=2, **asked),
    ]
    engine.execute(requests)
    for response in (response for one in requests for response in one.sender.wait()):
        assert set(response.arrays) == set(outputs)
        for name, array in response.arrays.items():
            assert array.dtype == _dtype(outputs[name]), name
            assert array.shape[0] == 1
            assert array.ndim == 1 + len(outputs[name].dims), name


def _dtype(output: Any) -> Any:
    return DTYPES[model_config_pb2.DataType.Name(output.data_type).removeprefix("TYPE_")]


def test_logits_come_with_the_last_response(engine: Any, outputs: Any, llm: LLM, prompt: list[int]) -> None:
    given = request(
        prompt,
        outputs,
        request_output_len=3,
        streaming=True,
        return_context_logits=True,
        return_generation_logits=True,
    )
    engine.execute([given])
    *before, last = given.sender.wait()
    vocab_size = llm.session.manifest.model.vocab_size
    assert all(response.arrays["generation_logits"].size == 0 for response in before)
    assert last.arrays["generation_logits"].shape == (1, 1, 3, vocab_size)
    assert last.arrays["context_logits"].shape == (1, len(prompt), vocab_size)


def test_a_stream_brings_what_is_new(engine: Any, outputs: Any, llm: LLM, prompt: list[int]) -> None:
    given = request(prompt, outputs, request_output_len=6, streaming=True)
    engine.execute([given])
    found = [response.arrays for response in given.sender.wait()]
    expected = llm.generate(TEXT, GREEDY).outputs[0]
    assert len(found) == 6
    assert [arrays["sequence_length"].tolist() for arrays in found] == [[[1]]] * 6
    assert [arrays["output_ids"].item() for arrays in found] == expected.token_ids
    assert b"".join(arrays["generated_text"].item() for arrays in found) == expected.text.encode()
    assert [arrays["finish_reason"].item() for arrays in found] == [b""] * 5 + [b"length"]


def test_sequences_of_several_lengths_are_padded(engine: Any, outputs: Any, prompt: list[int]) -> None:
    given = request(
        prompt,
        outputs,
        request_output_len=6,
        num_return_sequences=4,
        runtime_top_k=0,
        random_seed=3,
        exclude_input_in_output=True,
        pad_id=77,
        stop_words=[b"e", b"a", b" "],
    )
    engine.execute([given])
    (response,) = given.sender.wait()
    ids, lengths = response.arrays["output_ids"][0], response.arrays["sequence_length"][0]
    assert ids.shape == (4, lengths.max())
    assert all((row[length:] == 77).all() for row, length in zip(ids, lengths, strict=True))
    assert response.arrays["prompt_ids"].shape == (1, 0)


def test_requests_share_the_batch_and_wait_for_none(engine: Any, outputs: Any, llm: LLM, prompt: list[int]) -> None:
    """A short request that comes after a long one ends before it."""
    long = request(prompt, outputs, request_output_len=50, end_id=-1, streaming=True)
    short = [request([*prompt, token], outputs, request_output_len=2) for token in range(5, 11)]
    engine.execute([long])
    long.sender.wait(num_responses=1)
    engine.execute(short)
    for one, token in zip(short, range(5, 11), strict=True):
        (response,) = one.sender.wait()
        expected = llm.generate([*prompt, token], SamplingParams(max_tokens=2, temperature=0)).outputs[0].token_ids
        assert response.arrays["output_ids"][0, 0, len(prompt) + 1 :].tolist() == expected
    assert len(long.sender.wait()) == 50


@pytest.fixture
def paused(repository: Path) -> Iterator[Any]:
    """A model tensorrt_llm whose engine makes no step."""
    model = load(repository, "tensorrt_llm", num_threads="1")
    model._llm.shutdown()
    model._llm._model = fake_session()
    model._llm.session.pump.loop.num_steps_allowed = 0
    yield model
    model.finalize()


def test_a_cancelled_request_ends_and_others_go_on(paused: Any, outputs: Any) -> None:
    abandoned, other = (request([3, 4], outputs, request_output_len=4, end_id=-1) for _ in range(2))
    paused.execute([abandoned, other])
    abandoned.sender.cancelled = True
    paused.cancel_abandoned()
    (response,) = abandoned.sender.wait()
    assert response.error is not None
    assert response.error.code() == TritonError.CANCELLED
    assert other.sender.responses == []
    for _ in range(4):
        paused._llm.session.pump.loop.step()
    (response,) = other.sender.wait()
    assert response.arrays["output_ids"].tolist() == [[[3, 4, *greedy_continuation([3, 4], 4)]]]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_request_that_fails_later_is_answered_too(streaming: bool, paused: Any, outputs: Any) -> None:
    given = request([3, 4], outputs, request_output_len=4, end_id=-1, streaming=streaming)
    paused.execute([given])
    paused._llm.session.pump.loop.fail = "the disk is on fire"
    paused._llm.session.pump.loop.step()
    error = given.sender.wait()[-1].error
    assert error is not None
    assert error.code() == TritonError.INTERNAL
    assert "the disk is on fire" in error.message()


@pytest.mark.parametrize(
    ("error", "code"),
    [(OverloadedError("try again"), TritonError.UNAVAILABLE), (RuntimeError("a bug"), TritonError.INTERNAL)],
)
def test_codes_say_whose_fault_it_was(error: Exception, code: int, paused: Any, outputs: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise type(error)(*error.args)  # a kept exception would keep the model alive

    paused._llm.generate_async = refuse
    given = request([3, 4], outputs)
    paused.execute([given])
    (response,) = given.sender.wait()
    assert response.error is not None
    assert response.error.code() == code
    assert str(error) in response.error.message()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"request_output_len": 1000}, "exceeds max_seq_len"),
        ({"end_id": 100_000}, "end_id"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_a_wrong_request_is_answered_with_what_is_wrong(
    values: dict[str, Any], message: str, engine: Any, outputs: Any, prompt: list[int]
) -> None:
    wrong, right = request(prompt, outputs, **values), request(prompt, outputs, request_output_len=1)
    engine.execute([wrong, right])
    (response,) = wrong.sender.wait()
    assert response.error is not None
    assert response.error.code() == TritonError.INVALID_ARG
    assert message in response.error.message()
    assert right.sender.wait()[-1].error is None


def test_a_request_ends_at_its_timeout(engine: Any, outputs: Any, prompt: list[int]) -> None:
    given = request(prompt, outputs, request_output_len=50, end_id=-1)
    given.timeout_microseconds = 1
    engine.execute([given])
    (response,) = given.sender.wait()
    assert response.arrays["finish_reason"].tolist() == [[b"timeout"]]


def test_text_goes_in_and_comes_out(repository: Path, engine: Any, outputs: Any, llm: LLM) -> None:
    """The three models run one after the other, as in the ensemble."""
    before, after = load(repository, "preprocessing"), load(repository, "postprocessing")
    asked = Request({"QUERY": np.array([[TEXT.encode()]], np.object_)}, ["INPUT_ID", "REQUEST_INPUT_LEN"])
    (ids,) = before.execute([asked])
    given = request(ids.arrays["INPUT_ID"][0].tolist(), outputs, request_output_len=6)
    engine.execute([given])
    (response,) = given.sender.wait()
    tensors = {"PROMPT_IDS": response.arrays["prompt_ids"], "GENERATED_TEXT": response.arrays["generated_text"]}
    (text,) = after.execute([Request(tensors, ["OUTPUT"])])
    expected = llm.generate(TEXT, GREEDY).outputs[0]
    assert text.arrays["OUTPUT"].tolist() == [[f"{TEXT}{expected.text}".encode()]]


def test_text_that_is_not_utf8_is_refused(repository: Path) -> None:
    asked = Request({"QUERY": np.array([[b"\xff"]], np.object_)}, ["INPUT_ID", "REQUEST_INPUT_LEN"])
    (response,) = load(repository, "preprocessing").execute([asked])
    assert response.error.code() == TritonError.INVALID_ARG
    assert "expected UTF-8" in response.error.message()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"medusa_choices": "x"}, "the parameter 'medusa_choices': expected none but engine_dir"),
        ({"num_threads": "many"}, "num_threads 'many': expected a whole number above 0"),
        ({"enable_kv_cache_reuse": "maybe"}, "enable_kv_cache_reuse 'maybe': expected true or false"),
        ({"kv_cache_free_gpu_mem_fraction": "half"}, "kv_cache_free_gpu_mem_fraction 'half': expected a number"),
        ({"batch_scheduler_policy": "static"}, "STATIC"),
    ],
)
def test_a_wrong_parameter_is_why_the_model_is_not_loaded(
    parameters: dict[str, str], message: str, repository: Path
) -> None:
    with pytest.raises(TritonModelException, match=message):
        load(repository, "tensorrt_llm", **parameters)


def test_parameters_say_how_the_engine_runs(repository: Path, outputs: Any, prompt: list[int]) -> None:
    model = load(
        repository,
        "tensorrt_llm",
        num_threads="1",
        max_tokens_in_paged_kv_cache="64",
        kv_cache_free_gpu_mem_fraction="",
        enable_kv_cache_reuse="false",
        enable_chunked_context="true",
        batch_scheduler_policy="max_utilization",
        cancellation_check_period_ms="50",
    )
    given = request(prompt, outputs, request_output_len=2)
    model.execute([given])
    assert given.sender.wait()[-1].error is None
    model.finalize()


def test_a_directory_without_an_engine_is_why_the_model_is_not_loaded(llm: LLM, tmp_path: Path) -> None:
    write_repository(llm.engine_dir, tmp_path / "out", str(tmp_path / "absent"))
    with pytest.raises(TritonModelException, match="absent does not exist"):
        load(tmp_path / "out", "tensorrt_llm")
