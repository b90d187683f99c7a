"""Refuses a GGUF file of an architecture that no family reads, by the names in its header alone."""

import re
from difflib import SequenceMatcher
from pathlib import Path

from trtllm_lite.common.gguf_parts import parts_of
from trtllm_lite.convert.family import Family, Gguf, all_families
from trtllm_lite.convert.gguf.config import keys_read
from trtllm_lite.convert.gguf.header import read_keys, read_tensors, read_text
from trtllm_lite.convert.gguf.names import roles_of
from trtllm_lite.convert.refusal import kind_of_tensor, refused
from trtllm_lite.errors import ConvertError, shown

ARCHITECTURE = "general.architecture"
_PART = re.compile(r"\.(weight|bias)$")
_ROPE_FACTORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")  # tensors that any family may have


def check_architecture(path: Path) -> None:
    """Raise ConvertError if the header of ``path`` has a text as its architecture that no family reads.

    What else the file and its other parts may lack is not looked at. Raises ConvertError for a damaged header, too.
    """
    first = parts_of(path)[0]
    architecture = read_text(first, ARCHITECTURE) if first.is_file() else None
    if architecture is not None and not any(architecture in own.architectures for _, own in _declared()):
        raise _unsupported(first, architecture)


def unsupported_value(path: Path, value: object) -> ConvertError:
    """The error for an architecture that no family has, without what is nearest."""
    expected = ", ".join(sorted({name for _, own in _declared() for name in own.architectures}))
    return ConvertError(f"{path} has the GGUF architecture {shown(value)}, expected one of {expected}")


def _declared() -> list[tuple[Family, Gguf]]:
    return [(family, family.gguf) for family in all_families().values() if family.gguf]


def _unsupported(path: Path, architecture: str) -> ConvertError:
    found = {entry.name: kind_of_tensor(_PART.sub("", entry.name)) for entry in read_tensors(path)[1]}
    kinds = {family.name: _kinds(family, own) for family, own in _declared()}
    counts = {name: len(known & set(found.values())) for name, known in kinds.items()}

    def distance(place: tuple[Family, Gguf]) -> tuple[int, float]:
        family, own = place
        alike = max(SequenceMatcher(None, architecture, name).ratio() for name in own.architectures)
        return -counts[family.name], -alike

    nearest, own = min(_declared(), key=distance)
    most, total = counts[nearest.name], len(set(found.values()))
    about = f"the family {nearest.name} ({own.architecture}), which has {most} of its {total} kinds of tensors"
    mapped = frozenset[str]().union(*kinds.values(), _ROPE_FACTORS)
    read = frozenset[str]().union(*(keys_read(own) for _, own in _declared()))
    prefix = f"{architecture}."
    return refused(
        str(unsupported_value(path, architecture)),
        [f"nearest by tensors: {about if most else 'none, as no family has any of its tensors'}"],
        (name for name, kind in found.items() if kind not in mapped),
        (key for key in read_keys(path) if key.startswith(prefix) and key.removeprefix(prefix) not in read),
    )


def _kinds(family: Family, own: Gguf) -> frozenset[str]:
    """The kinds of tensors that files of ``family`` may have, without .weight and .bias."""
    stems = [stem for stem, role in roles_of(own).items() if role in family.tensor_names]
    parts = [part for split in own.by_head.values() for part in split]
    return frozenset(map(kind_of_tensor, (*stems, *parts)))
