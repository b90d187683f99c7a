"""Writes the rules of a grammar's markers, which can contain special tokens of the model's tokenizer."""

import json
import re
from collections.abc import Collection, Mapping

from trtllm_lite.runtime.session.guided_decoding import GrammarSource, Marker

FREE = "(?s:.*)"
"""Any text, as a regular expression; it contains no special tokens."""


def with_markers(source: GrammarSource, special_ids: Mapping[str, int], end_ids: Collection[int]) -> str:
    """The text of a Lark grammar with the rules of its markers.

    ``special_ids`` maps names of special tokens to their ids. The text of a marker ends before one of ``end_ids``,
    because an end token adds nothing to a text.
    """
    return "\n".join([source.text, *(_rule(marker, special_ids, end_ids) for marker in source.markers)])


def _rule(marker: Marker, special_ids: Mapping[str, int], end_ids: Collection[int]) -> str:
    pieces = _pieces(marker.text, special_ids, end_ids)
    if not marker.is_behind_text:
        return f"{marker.rule}: {' '.join(map(_written, pieces)) or _written('')}"
    first, *others = pieces
    rest = "".join(f" {_written(piece)}" for piece in others)
    if isinstance(first, int):
        return f"{marker.rule}: /{FREE}/ {_written(first)}{rest}"
    return f"{marker.rule}: text_of_{marker.rule}{rest}\ntext_of_{marker.rule}[lazy]: /{FREE}/ {_written(first)}"


def _pieces(text: str, special_ids: Mapping[str, int], end_ids: Collection[int]) -> list[str | int]:
    """Texts and ids of special tokens, up to the first end token."""
    names = sorted((name for name in special_ids if name in text), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    pieces: list[str | int] = []
    for part in filter(None, parts):
        number = special_ids.get(part)
        if number in end_ids:
            break
        pieces.append(part if number is None else number)
    return pieces


def _written(piece: str | int) -> str:
    return f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece, ensure_ascii=False)
