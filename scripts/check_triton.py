"""Runs an engine in Triton Inference Server and compares its answers with those of LLM: check_triton.py ENGINE.

The server is that of the package nvidia-pytriton; check_triton.sh installs it.
"""

import json
import os
import queue
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytriton
import tritonclient.grpc as triton

from trtllm_lite import LLM, SamplingParams
from trtllm_lite.triton.repository import write_repository

HTTP, GRPC = 18000, 18001
TYPES = {int: (np.int32, "INT32"), float: (np.float32, "FP32"), bool: (np.bool_, "BOOL"), str: (np.object_, "BYTES")}
PROMPTS = ["The capital of France is", "Once upon a time", "Water boils at", "Ein Satz mit Umlauten: ä ö ü ß"]
MAX_TOKENS = 24


@contextmanager
def server(repository: Path, log: Path) -> Iterator[None]:
    """Run a server of the repository until ``with`` ends."""
    home = Path(pytriton.__file__).parent / "tritonserver"
    backend = log.parent / "backends" / "python"
    backend.mkdir(parents=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = home / "python_backend_stubs" / version / "triton_python_backend_stub"
    for file in (stub, *(home / "backends" / "python").iterdir()):
        (backend / file.name).symlink_to(file)
    command = [
        *(home / "bin" / "tritonserver", f"--model-repository={repository}", f"--backend-directory={backend.parent}"),
        *(f"--http-port={HTTP}", f"--grpc-port={GRPC}", "--allow-metrics=false"),
    ]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
    }
    with log.open("w") as output:  # in its folder the server's Python does not import this checkout
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=log.parent)
    try:
        while not ready():
            if process.poll() is not None:
                sys.exit(f"the server has ended:\n{log.read_text()}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def ready() -> bool:
    try:
        return urllib.request.urlopen(f"http://localhost:{HTTP}/v2/health/ready").status == 200
    except OSError:
        return False


def generate(**fields: Any) -> dict[str, Any]:
    """The answer of the ensemble over HTTP."""
    url = f"http://localhost:{HTTP}/v2/models/ensemble/generate"
    request = urllib.request.Request(url, json.dumps(fields).encode())
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as error:
        return json.load(error)


class Stream:
    """A request to a model over gRPC, with a stream of responses."""

    def __init__(self, model: str, **fields: Any) -> None:
        self._client = triton.InferenceServerClient(f"localhost:{GRPC}")
        self._responses: queue.Queue[Any] = queue.Queue()
        self._client.start_stream(lambda result, error: self._responses.put(error or result))
        inputs = [self._input(name, value) for name, value in fields.items()]
        self._client.async_stream_infer(model, inputs, enable_empty_final_response=True)

    @staticmethod
    def _input(name: str, value: Any) -> Any:
        """An input in the shape that clients of Triton's TensorRT-LLM backend use: the first extent is 1."""
        dtype, kind = TYPES[type(value[0] if isinstance(value, list) else value)]
        array = np.array([value] if isinstance(value, list) else [[value]], dtype)
        tensor = triton.InferInput(name, list(array.shape), kind)
        tensor.set_data_from_numpy(array)
        return tensor

    def __iter__(self) -> Iterator[Any]:
        while True:
            response = self._responses.get(timeout=60)
            if isinstance(response, Exception):
                raise response
            if response.get_response().outputs:
                yield response
            if response.get_response().parameters["triton_final_response"].bool_param:
                break
        self._client.stop_stream()

    def cancel(self) -> None:
        self._client.stop_stream(cancel_requests=True)


def texts(prompt: str) -> list[str]:
    stream = Stream("ensemble", text_input=prompt, max_tokens=MAX_TOKENS, stream=True)
    return [response.as_numpy("text_output").item().decode() for response in stream]


def check(name: str, found: Any, expected: Any) -> None:
    if found != expected:
        sys.exit(f"{name}: expected {expected!r}, found {found!r}")
    print(f"ok: {name}")


def main(engine: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        repository, log = Path(directory) / "repository", Path(directory) / "log"
        write_repository(engine, repository)
        with LLM(engine) as llm:
            greedy = SamplingParams(max_tokens=MAX_TOKENS, temperature=0)
            outputs = [output.outputs[0] for output in llm.generate(PROMPTS, greedy)]
            ids = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
        expected = [output.text for output in outputs]
        with server(repository, log):
            run(ids, outputs, expected)


def run(ids: list[list[int]], outputs: list[Any], expected: list[str]) -> None:
    answers = [generate(text_input=prompt, max_tokens=MAX_TOKENS, stop_words="", bad_words="") for prompt in PROMPTS]
    whole = [f"{prompt}{text}" for prompt, text in zip(PROMPTS, expected, strict=True)]
    check("answers over HTTP", [answer["text_output"] for answer in answers], whole)
    check("streams over gRPC", ["".join(texts(prompt)) for prompt in PROMPTS], expected)
    check("a response for each token", len(texts(PROMPTS[0])), MAX_TOKENS)
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(texts, PROMPTS * 16))
    check("64 streams, 32 at once", ["".join(pieces) for pieces in found], expected * 16)
    tokens = Stream("tensorrt_llm", input_ids=ids[0], input_lengths=len(ids[0]), request_output_len=MAX_TOKENS)
    (response,) = tokens
    check("token ids", response.as_numpy("output_ids").flatten().tolist(), ids[0] + outputs[0].token_ids)
    found = generate(text_input=PROMPTS[0], max_tokens=3, return_log_probs=True, exclude_input_in_output=True)
    check("log probabilities", (len(found["output_log_probs"]), found["finish_reason"]), (3, "length"))
    check("sequences", len(generate(text_input="A", max_tokens=3, top_k=0, num_return_sequences=3)["text_output"]), 3)
    found = generate(text_input=PROMPTS[0], max_tokens=10**6)
    check("a limit is an error", "exceeds max_seq_len" in found["error"], True)
    endless = Stream("tensorrt_llm", input_ids=ids[0], input_lengths=len(ids[0]), end_id=-1, streaming=True)
    next(iter(endless))
    endless.cancel()
    check("cancelling leaves others alone", "".join(texts(PROMPTS[0])), expected[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
