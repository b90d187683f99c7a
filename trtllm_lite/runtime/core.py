"""Imports the C++ extension when it is first needed; if it is missing, the error names the remedy."""

import importlib
from functools import cache
from pathlib import Path
from typing import Any

from trtllm_lite.errors import EngineError


@cache
def core() -> Any:
    """The module ``trtllm_lite._core``. Raises EngineError if it does not load."""
    try:
        return importlib.import_module("trtllm_lite._core")
    except ImportError as error:
        remedy = "install trtllm_lite again with the Python that runs it"
        checkout = Path(__file__).parents[2]
        if (checkout / "CMakeLists.txt").is_file():
            remedy = f"{checkout} is a checkout: run Python elsewhere, or install it with `pip install --editable .`"
        raise EngineError(f"the C++ extension trtllm_lite._core does not load ({error}): {remedy}") from error
