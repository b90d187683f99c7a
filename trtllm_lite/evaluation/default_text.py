"""The text that is evaluated where none is given: chapters of Python's language reference, which come with Python.

Every installation has them, as the help texts of ``pydoc`` (Python Software Foundation; PSF License 2). They are some
100,000 tokens of English prose with code. They change a little from version to version, so that figures are compared
only where Python's version is the same.
"""

import sys
from importlib import import_module

from trtllm_lite.errors import ArgumentError

_MODULE = "pydoc_data.topics"


def default_text() -> str:
    """The chapters in the order of their titles. Raises ArgumentError if Python was installed without them."""
    try:
        topics: dict[str, str] = import_module(_MODULE).topics
    except ImportError as error:
        raise ArgumentError(
            f"this Python lacks {_MODULE}, the text that is evaluated by default: install Python's documentation "
            "strings, or pass a dataset"
        ) from error
    return "\n".join(topics[title] for title in sorted(topics))


def default_text_name() -> str:
    """The text's name, with the version that it comes from."""
    return f"{_MODULE} of Python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
