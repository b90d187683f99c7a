"""Loads the TensorRT that an engine was compiled with, and the compiled network."""

from collections import deque
from importlib import import_module
from typing import Any

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import DeviceError, EngineError

_KEPT_LINES = 5
_FAILURES = ("ERROR", "INTERNAL_ERROR")


class Library:
    """The package ``name``, ``tensorrt_rtx`` or ``tensorrt``, and its latest error messages."""

    def __init__(self, name: str) -> None:
        """Raises DeviceError if the package is not installed."""
        try:
            self.module = import_module(name)
        except ImportError as error:
            extra = "pip install 'trtllm_lite[tensorrt-rtx]'" if name == "tensorrt_rtx" else f"pip install {name}"
            raise DeviceError(f"this engine runs with {name}, which does not load ({error}): {extra}") from error
        self.name = name
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._logger = self._make_logger()

    def load(self, image: Any, built_with: str) -> Any:
        """The ``ICudaEngine`` of a serialized network that the compiler ``built_with`` made. Raises EngineError."""
        runtime = self.module.Runtime(self._logger)
        engine = runtime.deserialize_cuda_engine(image)
        if engine is None:
            raise EngineError(
                f"{self.name} {self.module.__version__} does not load the engine, which {built_with} built"
                f"{self.complaints()}: use the same version on both machines, and a GPU that the engine was built for"
            )
        return engine

    def complaints(self) -> str:
        """The library's latest errors in brackets, or an empty text. Each is returned once."""
        lines = "; ".join(self._lines)
        self._lines.clear()
        return f" ({lines})" if lines else ""

    def _make_logger(self) -> Any:
        lines, trt = self._lines, self.module

        class Logger(trt.ILogger):  # type: ignore[name-defined]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, message: str) -> None:
                if severity.name in _FAILURES:
                    lines.append(one_line(message))

        return Logger()
