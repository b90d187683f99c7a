"""Shares code for Triton's Python backend among the models: reading tensors, answering, errors, paths."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError, LimitError, OverloadedError, TrtllmLiteError, shown
from trtllm_lite.triton.requests import Arrays


class Parameters:
    """The parameters of a model's ``config.pbtxt``, and the place of its files.

    ``args`` is what Triton hands to ``initialize``. Raises ArgumentError for a parameter that is not among ``known``.
    """

    def __init__(self, args: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._directory = Path(args["model_repository"])
        entries = json.loads(args["model_config"]).get("parameters", {})
        self._values = {name: entry["string_value"] for name, entry in entries.items()}
        unknown = sorted(set(self._values) - set(known))
        if unknown:
            raise ArgumentError(
                f"config.pbtxt has the parameter {', '.join(map(shown, unknown))}: expected none but {', '.join(known)}"
            )

    def text(self, name: str) -> str | None:
        """The value of a parameter; None if it is absent or empty."""
        return self._values.get(name) or None

    def path(self, name: str) -> Path:
        """The path that a parameter names, relative to the model's directory. Raises ArgumentError if it is absent."""
        value = self.text(name)
        if value is None:
            raise ArgumentError(f"config.pbtxt has no parameter {name}: write the repository again")
        return self._directory / value


@contextmanager
def initializing() -> Iterator[None]:
    """Turn errors of this package into those that Triton shows as the reason why a model is not loaded."""
    try:
        yield
    except TrtllmLiteError as error:
        raise pb_utils.TritonModelException(str(error)) from error


def arrays_of(request: Any, names: tuple[str, ...]) -> Arrays:
    """The inputs of a request that are among ``names``."""
    tensors = {name: pb_utils.get_input_tensor_by_name(request, name) for name in names}
    return {name: tensor.as_numpy() for name, tensor in tensors.items() if tensor is not None}


def response_of(request: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """A response with those outputs that the request wants."""
    wanted = request.requested_output_names()
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, arrays[name]) for name in arrays if name in wanted])


def error_response(error: Exception) -> Any:
    """A response that describes an error; its code tells whose fault it was."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(_message(error), _code(error)))


def cancelled_response() -> Any:
    """A response to a request that its client has cancelled."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED))


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, TrtllmLiteError) else f"{type(error).__name__}: {error} (unexpected)"


def _code(error: Exception) -> Any:
    codes = pb_utils.TritonError
    if isinstance(error, ArgumentError | LimitError):
        return codes.INVALID_ARG
    return codes.UNAVAILABLE if isinstance(error, OverloadedError) else codes.INTERNAL
