"""The model ``preprocessing``: turns a text into token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtllm_lite.errors import TrtllmLiteError
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.triton.python_backend import Parameters, arrays_of, error_response, initializing, response_of
from trtllm_lite.triton.requests import text_of
from trtllm_lite.triton.tensors import INPUT_ID, QUERY, REQUEST_INPUT_LEN


class TritonPythonModel:
    """What Triton's Python backend calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the tokenizer."""
        with initializing():
            self._tokenizer = Tokenizer.from_files(Parameters(args, ("tokenizer_dir",)).path("tokenizer_dir"))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """The responses, or what was wrong, of each request."""
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        try:
            ids = self._tokenizer.encode(text_of(QUERY.name, arrays_of(request, (QUERY.name,))))
        except TrtllmLiteError as error:
            return error_response(error)
        arrays = {
            INPUT_ID.name: np.array([ids], np.int32),
            REQUEST_INPUT_LEN.name: np.array([[len(ids)]], np.int32),
        }
        return response_of(request, arrays)
