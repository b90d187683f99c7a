"""Holds the metadata of a GGUF file against the table of its keys, and reads the sampling that it recommends."""

from pathlib import Path
from typing import Any

from trtllm_lite.convert.metadata.gguf import GGUF, SAMPLING

_WINDOW = "general.sampling.penalty_last_n"
_WHOLE_CONTEXT = -1


def check_metadata(path: Path, metadata: dict[str, Any]) -> None:
    """Raise ConvertError for keys outside of the model's architecture that might change the results."""
    own = f"{metadata.get('general.architecture')}."
    others = {key: value for key, value in metadata.items() if not key.startswith(own)}
    if others.get("general.sampling.penalty_repeat") in (None, 1):
        others.pop(_WINDOW, None)
    elif others.get(_WINDOW) == _WHOLE_CONTEXT:
        others.pop(_WINDOW)
    GGUF.check(path, others)


def sampling_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """The generation defaults under generation_config.json's names; {} for a file that recommends none.

    llama.cpp draws tokens unless the temperature is 0.
    """
    found = {ours: metadata[theirs] for theirs, ours in SAMPLING.items() if theirs in metadata}
    return {"do_sample": found.get("temperature", 1) > 0, **found} if found else {}
