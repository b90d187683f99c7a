"""Shares styles among the project's HTML pages."""

import hashlib
from base64 import b64encode
from pathlib import Path


def colors() -> str:
    """The style sheet of the colors, for light and dark."""
    return Path(__file__).with_name("colors.css").read_text()


def digest(text: str) -> str:
    """The hash by which a content security policy allows a script or a style."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
