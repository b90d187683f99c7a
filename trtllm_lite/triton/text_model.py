"""Defines TextModel: the common part of the models before and after the engine, which convert text and token ids."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.triton.python_backend import Parameters, arrays_of, error_response, initializing, response_of
from trtllm_lite.triton.requests import Arrays
from trtllm_lite.triton.tensors import Tensor


class TextModel(ABC):
    """A model of Triton's Python backend that has a tokenizer, and answers each request at once."""

    _inputs: ClassVar[tuple[Tensor, ...]]

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the tokenizer."""
        with initializing():
            self._tokenizer = Tokenizer.from_files(Parameters(args, ("tokenizer_dir",)).path("tokenizer_dir"))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """The response to each request, or its error."""
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        try:
            arrays = self._answer(arrays_of(request, tuple(tensor.name for tensor in self._inputs)))
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return error_response(error)
        return response_of(request, arrays)

    @abstractmethod
    def _answer(self, arrays: Arrays) -> Arrays:
        """The outputs of a request, by name, made from its inputs."""
