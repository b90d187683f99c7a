"""The model ``postprocessing``: puts the text of an answer together.

What was generated is text already. Its token ids become text where they are generated, because that takes more than the
ids of a step: spaces depend on what came before, a character may take several steps, and text ends before a stop word.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtllm_lite.errors import TrtllmLiteError
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.triton.python_backend import Parameters, arrays_of, error_response, initializing, response_of
from trtllm_lite.triton.tensors import OUTPUT, POST_PROMPT, POST_TEXT


class TritonPythonModel:
    """What Triton's Python backend calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the tokenizer."""
        with initializing():
            self._tokenizer = Tokenizer.from_files(Parameters(args, ("tokenizer_dir",)).path("tokenizer_dir"))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """The response to each request, or what was wrong with it."""
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        arrays = arrays_of(request, (POST_PROMPT.name, POST_TEXT.name))
        try:
            prompt = self._tokenizer.decode(arrays[POST_PROMPT.name].flatten().tolist()).encode()
        except TrtllmLiteError as error:
            return error_response(error)
        texts = [prompt + text for text in arrays[POST_TEXT.name].flat]
        return response_of(request, {OUTPUT.name: np.array([texts], np.object_)})
