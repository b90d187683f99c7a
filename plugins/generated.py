"""The headers of kernels that are generated from schemas instead of being kept in files."""

from collections.abc import Callable, Mapping
from pathlib import Path

from trtllm_lite.request_fields.cpp import numbers_header

HEADERS: Mapping[str, Callable[[], str]] = {"sample/numbers.cuh": numbers_header}
"""The function that makes the text of each header, by the name that kernels include."""


def write_headers(folder: Path) -> None:
    """Write all headers below ``folder``, for compilers that read files."""
    for name, text in HEADERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text())
