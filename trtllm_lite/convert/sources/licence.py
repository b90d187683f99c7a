"""Finds the licence of a model in its files."""

from pathlib import Path
from typing import Any

from trtllm_lite.common.foreign_files import open_foreign
from trtllm_lite.common.gguf_parts import parts_of
from trtllm_lite.common.vocabulary import MAX_BYTES
from trtllm_lite.convert.gguf.header import read_text
from trtllm_lite.convert.sources.json_file import read_json

_CARD = "README.md"
_MAX_CARD_BYTES = 1 << 16
_KEY = "license"
_OTHER = "other"  # value for a model with terms of its own, which the key license_name names


def find_licence(model: Path) -> str | None:
    """The licence of a model directory, checkpoint or GGUF file, such as apache-2.0; None if no file says it.

    It stands in the header of the model card README.md (https://huggingface.co/docs/hub/model-cards), in config.json,
    or in the header of a GGUF file. A card that cannot be parsed says nothing. Raises OSError, ConvertError.
    """
    if model.is_dir():
        card = _header(model / _CARD)
        found = card.get("license_name") if card.get(_KEY) == _OTHER else card.get(_KEY)
        found = found or read_json(model / "config.json").get(_KEY)
    else:
        found = read_text(parts_of(model)[0], f"general.{_KEY}")
    return found if isinstance(found, str) and found.strip() else None


def _header(card: Path) -> dict[str, Any]:
    """The YAML between lines of three dashes with which a model card begins; {} if there is none."""
    import yaml

    if not card.is_file():
        return {}
    with open_foreign(card, MAX_BYTES) as file:
        text = file.read(_MAX_CARD_BYTES).decode(errors="replace").replace("\r\n", "\n")
    begin, _, rest = text.partition("---\n")
    header, end, _ = rest.partition("\n---")
    if begin or not end:
        return {}
    try:
        found = yaml.safe_load(header)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
