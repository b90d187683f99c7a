"""Classifies the keys of one file of a model: used, without effect, or an error."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.errors import ConvertError


@dataclass(frozen=True)
class KeyTable:
    """The keys of the file ``name``, which messages and ``--ignore_config_keys`` put before a key: NAME.KEY.

    ``used`` are keys that have a meaning here. ``changes_nothing`` maps a reason for ignoring keys to those keys,
    separated by spaces; ``only_as`` maps keys to the values with which they change nothing. ``patterns`` are regular
    expressions of further keys that are used or change nothing. Null, false, 0 and empty values switch a feature off,
    and change nothing either; so do keys that begin with an underscore.
    """

    name: str
    used: Sequence[str]
    changes_nothing: Mapping[str, str] = field(default_factory=dict)
    only_as: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    patterns: Sequence[str] = ()

    @property
    def keys(self) -> frozenset[str]:
        """Every key that the table names."""
        return frozenset((*self.used, *self._harmless, *self.only_as))

    @property
    def _harmless(self) -> list[str]:
        return [key for keys in self.changes_nothing.values() for key in keys.split()]

    def problems(self, values: Mapping[str, Any]) -> list[str]:
        """Return a sentence for every unused key of ``values`` that might change the results."""
        matched = (key for key in values if any(re.fullmatch(pattern, key, re.DOTALL) for pattern in self.patterns))
        prefix = f"{self.name}." if self.name else ""
        fields = ConfigFields(dict(values), prefix, frozenset((*self.used, *self._harmless, *matched)))
        for key, allowed in self.only_as.items():
            fields.expect_neutral(key, *allowed)
        fields.check_unread()
        return fields.problems

    def check(self, file: Any, values: Mapping[str, Any]) -> None:
        """Raise ConvertError with all problems of ``values``, which were read from ``file``."""
        if problems := self.problems(values):
            raise ConvertError(f"{file} has settings that are not supported:\n  " + "\n  ".join(problems))
