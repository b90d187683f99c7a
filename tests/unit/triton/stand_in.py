"""A stand-in for those parts of ``triton_python_backend_utils`` that our models use.

https://github.com/triton-inference-server/python_backend describes the module. Triton makes it inside its own processes
only; ``scripts/check_triton.sh`` runs the models there.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from google.protobuf import json_format, text_format
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2

FINAL = 1
TIMEOUT = 60  # seconds after which a test that hangs fails


class Tensor:
    """A tensor with a name. Strings are arrays of objects, each of which is bytes."""

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        assert isinstance(array, np.ndarray)
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> NDArray[Any]:
        return self._array


class TritonError:
    """An error of a request."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    """An error that keeps a model from being loaded."""


@dataclass
class InferenceResponse:
    output_tensors: Sequence[Tensor] = ()
    error: TritonError | None = None

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The tensors by name."""
        assert self.error is None, self.error.message()
        return {tensor.name(): tensor.as_numpy() for tensor in self.output_tensors}


class Sender:
    """Takes the responses of one request, none of them after the last."""

    def __init__(self) -> None:
        self.cancelled = False
        self.responses: list[InferenceResponse] = []
        self._changed = threading.Condition()
        self._final = False

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        with self._changed:
            assert not self._final
            self.responses.append(response)
            self._final = flags == FINAL
            self._changed.notify_all()

    def is_cancelled(self) -> bool:
        return self.cancelled

    def wait(self, num_responses: int | None = None) -> list[InferenceResponse]:
        """Wait for the last response, or for ``num_responses`` of them; returns all that have come."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self._final or (num_responses is not None and len(self.responses) >= num_responses), TIMEOUT
            )
            return list(self.responses)


@dataclass
class Request:
    """A request with its input tensors, which wants all ``outputs``."""

    arrays: Mapping[str, NDArray[Any]]
    outputs: Sequence[str]
    timeout_microseconds: int = 0
    sender: Sender = field(default_factory=Sender)

    def requested_output_names(self) -> Sequence[str]:
        return self.outputs

    def timeout(self) -> int:
        return self.timeout_microseconds

    def get_response_sender(self) -> Sender:
        return self.sender


def _input(request: Request, name: str) -> Tensor | None:
    return Tensor(name, request.arrays[name]) if name in request.arrays else None


def module() -> ModuleType:
    """The stand-in for the module ``triton_python_backend_utils``."""
    found = ModuleType("triton_python_backend_utils")
    for kind in (Tensor, TritonError, TritonModelException, InferenceResponse):
        setattr(found, kind.__name__, kind)
    found.get_input_tensor_by_name = _input  # type: ignore[attr-defined]
    found.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL  # type: ignore[attr-defined]
    return found


def read_config(model: Path) -> Any:
    """The ``ModelConfig`` of a model in a repository, as protobuf reads it by Triton's own schema."""
    return text_format.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def arguments(model: Path) -> dict[str, str]:
    """What Triton hands to ``initialize`` of a model."""
    config = json_format.MessageToDict(read_config(model), preserving_proto_field_name=True)
    return {"model_repository": str(model), "model_version": "1", "model_config": json.dumps(config)}
