"""Checks the metadata of a GGUF file against the table of its keys, and reads the recommended sampling parameters."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from trtllm_lite.convert.metadata.gguf import GGUF, SAMPLING
from trtllm_lite.errors import ConvertError, shown

_PENALTY, _WINDOW = "general.sampling.penalty_repeat", "general.sampling.penalty_last_n"
_WHOLE_CONTEXT = -1
_USUAL_WINDOW = 64  # llama.cpp's default


def check_metadata(path: Path, metadata: dict[str, Any], used: Collection[str] = ()) -> None:
    """Raise ConvertError for keys outside the model's architecture that might change the results.

    The family reads those in ``used``.
    """
    own = f"{metadata.get('general.architecture')}."
    others = {key: value for key, value in metadata.items() if not key.startswith(own) and key not in used}
    GGUF.check(path, others)
    penalty = metadata.get(_PENALTY, 1)
    if penalty != 1 and metadata.get(_WINDOW) != _WHOLE_CONTEXT:
        raise ConvertError(
            f"{path} has {_PENALTY} {shown(penalty)} for the last {shown(metadata.get(_WINDOW, _USUAL_WINDOW))} tokens "
            f"({_WINDOW}), and here it would be for all: to go without it, pass --ignore_config_keys {_PENALTY} "
            "(ignore_config_keys of LLM)"
        )


def sampling_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """The generation defaults under generation_config.json's names; {} for a file that recommends none.

    llama.cpp samples unless the temperature is 0.
    """
    found = {ours: metadata[theirs] for theirs, ours in SAMPLING.items() if theirs in metadata}
    return {"do_sample": found.get("temperature", 1) > 0, **found} if found else {}
