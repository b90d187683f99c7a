"""Holds the keys of a model's files that the user wants left unread (``--ignore_config_keys``)."""

from collections.abc import Collection, Mapping
from typing import Any

from trtllm_lite.errors import ConvertError


class IgnoredKeys:
    """A set of keys, removed from the values that are read; it records which of them no file had.

    A key of config.json or generation_config.json is written KEY, one of a nested object OBJECT.KEY, and one of another
    file FILE.KEY, without the .json; a GGUF file's keys are written as the file has them.
    """

    def __init__(self, keys: Collection[str] = ()) -> None:
        self.keys = tuple(sorted(set(keys)))
        self._found: set[str] = set()

    def without(self, values: Mapping[str, Any], file: str = "") -> dict[str, Any]:
        """Return ``values`` without the user's keys FILE.KEY of this ``file``, or without the keys KEY if it is ""."""
        left = dict(values)
        prefix = f"{file}." if file else ""
        for key in self.keys:
            less = _without(left, key.removeprefix(prefix)) if key.startswith(prefix) else left
            if less != left:
                self._found.add(key)
            left = less
        return left

    def check(self, description: str) -> None:
        """Raise ConvertError for keys that no file of the model ``description`` had."""
        absent = [key for key in self.keys if key not in self._found]
        if absent:
            raise ConvertError(
                f"expected --ignore_config_keys to name keys of the config of {description}, which has no "
                f"{', '.join(absent)}: check the spelling; a key of a nested object is written OBJECT.KEY, and one of "
                "another file than config.json FILE.KEY, such as tokenizer_config.add_prefix_space"
            )


def _without(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Return ``values`` without ``key``, or OBJECT.KEY; keys themselves may have dots."""
    if key in values:
        return {name: value for name, value in values.items() if name != key}
    first, _, rest = key.partition(".")
    inner = values.get(first)
    return {**values, first: _without(inner, rest)} if rest and isinstance(inner, dict) else values
