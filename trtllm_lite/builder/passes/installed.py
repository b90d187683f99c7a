"""Finds the passes of other packages, which declare them by entry points of the group ``trtllm_lite.passes``.

They fuse operators that these packages have, and come before the passes that would take a part of their patterns.
"""

from functools import cache
from importlib.metadata import entry_points

from trtllm_lite.builder.passes.contract import GraphPass
from trtllm_lite.errors import BuildError

GROUP = "trtllm_lite.passes"


@cache
def installed_passes() -> tuple[GraphPass, ...]:
    """The passes of other packages, by the names of their entry points. Raises BuildError if one is not a pass."""
    found = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        found[entry.value] = loaded = entry.load()
        if not isinstance(loaded, GraphPass):
            raise BuildError(
                f"expected the entry point {entry.value} to be a GraphPass, found {type(loaded).__name__}: "
                "docs/contributing/out-of-tree.md has an example"
            )
    return tuple(found.values())
