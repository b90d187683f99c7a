"""The model ``tensorrt_llm``: runs the engine.

Each request of Triton becomes a request of the runtime at once, and all of them share the engine's batch; Triton's own
batching is not used. Responses are sent by one thread, from an asyncio loop.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_lite.runtime.api.generation import Generation
from trtllm_lite.runtime.api.request_output import RequestOutput
from trtllm_lite.runtime.session.request import FinishReason
from trtllm_lite.triton import python_backend
from trtllm_lite.triton.engine_settings import SETTINGS, open_engine, whole_number_of
from trtllm_lite.triton.python_backend import Parameters, arrays_of, error_response, response_of
from trtllm_lite.triton.requests import ParsedRequest, parse_request
from trtllm_lite.triton.responses import response_arrays
from trtllm_lite.triton.tensors import BAD_WORD_IDS, INPUT_IDS, INPUT_LENGTHS, OPTIONS, STOP_WORD_IDS

_INPUTS = (
    *(tensor.name for tensor in (INPUT_IDS, INPUT_LENGTHS, STOP_WORD_IDS, BAD_WORD_IDS)),
    *(option.inner for option in OPTIONS),
)
_MICROSECONDS = 1e6
_DEFAULT_CHECK_PERIOD_MS = 100


class TritonPythonModel:
    """The model that Triton's Python backend calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the engine and start the thread that answers."""
        with python_backend.initializing():
            parameters = Parameters(args, ("engine_dir", "cancellation_check_period_ms", *SETTINGS))
            period = whole_number_of(parameters, "cancellation_check_period_ms") or _DEFAULT_CHECK_PERIOD_MS
            self._llm = open_engine(parameters)
        self._running: dict[Generation, Any] = {}  # the senders of responses of running requests
        self._ends = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="responses", daemon=True)
        self._thread.start()
        self._watch = asyncio.run_coroutine_threadsafe(self._watch_for_cancellation(period / 1000), self._loop)

    def execute(self, requests: Sequence[Any]) -> None:
        """Start requests; returns before they have ended."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                parsed = parse_request(arrays_of(request, _INPUTS))
                generation = self._llm.generate_async(
                    parsed.prompt_ids,
                    parsed.params,
                    streaming=parsed.streaming,
                    timeout=request.timeout() / _MICROSECONDS or None,
                )
            except Exception as error:  # noqa: BLE001 - every request gets an answer
                _send_last(sender, error_response(error))
                continue
            self._running[generation] = sender
            asyncio.run_coroutine_threadsafe(self._answer(request, sender, parsed, generation), self._loop)

    def finalize(self) -> None:
        """End the engine and the thread; Triton waits for running requests before it calls this."""
        self._loop.call_soon_threadsafe(self._ends.set)
        self._watch.result()
        self._llm.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _answer(self, request: Any, sender: Any, parsed: ParsedRequest, generation: Generation) -> None:
        try:
            async for output in generation:
                response = response_of(request, response_arrays(parsed, output))
                if output.finished:
                    _send_last(sender, python_backend.cancelled_response() if _is_cancelled(output) else response)
                else:
                    sender.send(response)
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            _send_last(sender, error_response(error))
        finally:
            del self._running[generation]

    async def _watch_for_cancellation(self, period: float) -> None:
        while not self._ends.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ends.wait(), period)
            self.cancel_abandoned()

    def cancel_abandoned(self) -> None:
        """Cancel requests that clients have cancelled."""
        for generation, sender in list(self._running.items()):
            if sender.is_cancelled():
                generation.cancel()


def _send_last(sender: Any, response: Any) -> None:
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _is_cancelled(output: RequestOutput) -> bool:
    return any(entry.finish_reason == FinishReason.CANCELLED.word for entry in output.outputs)
