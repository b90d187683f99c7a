"""Compares the tensors a network needs with those a source has, and reports every difference at once."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from trtllm_lite.common.printable import one_line
from trtllm_lite.convert.sources.safetensors_file import TensorInfo
from trtllm_lite.convert.sources.source import StoredNames
from trtllm_lite.network.graph import Weight


@dataclass(frozen=True)
class Mismatch:
    """Names of tensors that the source lacks, of tensors that the network does not use, and of misshapen ones."""

    missing: tuple[str, ...]
    unused: tuple[str, ...]
    reshaped: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many tensors differ."""
        return len(self.missing) + len(self.unused) + len(self.reshaped)

    def report(self, most: int | None = None) -> str:
        """One line per kind of difference; numbers of layers and experts are folded into ranges.

        Of each kind at most ``most`` names are listed.
        """
        lines = []
        for kind, names in (("missing", self.missing), ("unused", self.unused), ("wrong shape", self.reshaped)):
            if names:
                lines.append(f"{kind} ({len(names)}): {listed(fold(names), most)}")
        return "\n  ".join(lines)


def compare(needed: Iterable[Weight], found: dict[str, TensorInfo], stored_names: StoredNames) -> Mismatch:
    """Every difference between the source tensors that ``needed`` are computed from and those ``found``.

    Tensors are named as they are stored; several tensors that are stored as one count as one difference.
    """
    wanted = {tensor.name: tensor.shape for weight in needed for tensor in weight.expression.sources()}

    def stored(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(own for name in names for own in stored_names(name)))

    return Mismatch(
        missing=stored(name for name in wanted if name not in found),
        unused=stored(name for name in found if name not in wanted),
        reshaped=tuple(
            dict.fromkeys(
                f"{', '.join(stored_names(name))} (expected {list(shape)}, found {list(found[name].shape)})"
                for name, shape in wanted.items()
                if name in found and found[name].shape != shape
            )
        ),
    )


def listed(items: Iterable[str], most: int | None = None) -> str:
    """The ``items``, or the first ``most`` of them and how many more there are."""
    lines = [one_line(item) for item in items]
    rest = 0 if most is None else len(lines) - most
    return ", ".join(lines[:most]) + (f" and {rest} more" if rest > 0 else "")


_LAST_NUMBER = re.compile(r"(.*\.)(\d{1,9})(\..*)", re.DOTALL)
_FIRST_NUMBER = re.compile(r"(.*?\.)(\d{1,9})(\..*)", re.DOTALL)


def fold(names: Iterable[str]) -> list[str]:
    """Fold names that differ only in their last number, and then names that differ only in their first.

    ``layers.0.x, layers.1.x`` become ``layers.{0-1}.x``, and the experts of layers ``layers.{0-1}.experts.{0-7}.x``.
    """
    return _fold(_fold(sorted(names), _LAST_NUMBER), _FIRST_NUMBER)


def _fold(names: Iterable[str], pattern: re.Pattern[str]) -> list[str]:
    """Replace names that differ only in the number that ``pattern`` finds by one name, in the place of the first."""
    folded: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = pattern.match(name)
        around, numbers = ((match[1], match[3]), [int(match[2])]) if match else ((name, ""), [])
        folded.setdefault(around, []).extend(numbers)
    return [f"{head}{ranges(sorted(numbers))}{tail}" if numbers else head for (head, tail), numbers in folded.items()]


def ranges(numbers: list[int]) -> str:
    """Ascending numbers as ``3`` or ``{0-2,5}``."""
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "{" + ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) + "}"
