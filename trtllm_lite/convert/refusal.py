"""The error for a model of no known family: what is nearest, what nobody maps, and how to add a family.

Both for Hugging Face's names and for those of GGUF files tensors are compared by their kinds: names without the numbers
of layers and experts.
"""

import re
from collections.abc import Iterable

from trtllm_lite.convert.matching import fold, listed
from trtllm_lite.errors import ConvertError

FAMILIES_PAGE, ADDING_PAGE = "docs/reference/families.md", "docs/contributing/family.md"
ADDING = f"to add a family: {ADDING_PAGE}, in a package of your own: docs/contributing/out-of-tree.md"
_NUMBER = re.compile(r"(?<=\.)(?:\d+|\{layer\}|\{expert\})(?=\.|$)")
FEW = 6
"""How many items of a list a refusal names."""


def kind_of_tensor(name: str) -> str:
    """The name of a tensor, or its form with {layer} and {expert}, without numbers of layers and experts."""
    return _NUMBER.sub("N", name)


def refused(what: str, nearest: Iterable[str], tensors: Iterable[str] = (), keys: Iterable[str] = ()) -> ConvertError:
    """The error that ``what`` begins: lines about the nearest families, ``tensors`` and ``keys`` that none knows."""
    names, unread = sorted(tensors), sorted(keys)
    lines = [what, *nearest]
    lines += [f"tensors that no family maps ({len(names)}): {listed(fold(names), FEW)}"] if names else []
    lines += [f"config keys that no family reads ({len(unread)}): {listed(unread, FEW)}"] if unread else []
    return ConvertError("\n  ".join([*lines, ADDING]))
