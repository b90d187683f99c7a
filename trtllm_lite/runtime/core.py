"""The C++ extension, imported when it is first needed: its absence is an error that says what to do."""

import importlib
from functools import cache
from typing import Any

from trtllm_lite.errors import EngineError


@cache
def core() -> Any:
    """The module ``trtllm_lite._core``. Raises EngineError if it does not load."""
    try:
        return importlib.import_module("trtllm_lite._core")
    except ImportError as error:
        raise EngineError(
            f"the C++ extension trtllm_lite._core does not load ({error}): install trtllm_lite again with the Python "
            "that runs it"
        ) from error
