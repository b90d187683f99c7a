"""Reads the JSON files of a model directory."""

import json
from pathlib import Path
from typing import Any

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.vocabulary import MAX_JSON_BYTES
from trtllm_lite.errors import ConvertError


def read_json(path: Path, required: bool = False) -> dict[str, Any]:
    """Return a JSON object; {} if the file is absent and not ``required``. Raises ConvertError for anything else."""
    if not path.is_file():
        if required:
            raise ConvertError(f"expected {path} in a Hugging Face model directory, found none: check --model_dir")
        return {}
    try:
        value = json.loads(read_foreign(path, MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"expected {path} to be JSON, but: {error}") from error
    if not isinstance(value, dict):
        raise ConvertError(f"expected {path} to be a JSON object, found a {type(value).__name__}")
    return value
