"""Makes the rows of the page's tables from an inspection."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trtllm_lite.engine.inspect import Inspection
from trtllm_lite.engine.manifest import Tactic
from trtllm_lite.engine.page.timings import Reason, Timing, read_reason
from trtllm_lite.engine.repeated import pattern


@dataclass(frozen=True)
class TacticRow:
    """A tactic: the site, the program, how it was chosen, and the time at the largest number of rows measured."""

    operator: str
    program: str
    choice: tuple[str, ...]
    reason: Reason
    slowest: Timing | None


@dataclass(frozen=True)
class Refusal:
    """Similar candidates, in ``count`` places, that a pass did not fuse for one reason."""

    site: str
    count: int
    reason: str


@dataclass(frozen=True)
class FileRow:
    """A file of the engine; an unknown checksum is empty."""

    name: str
    num_bytes: int
    crc32c: str
    sha256: str


def tactic_rows(found: Inspection) -> list[TacticRow]:
    """One row for each tactic."""
    programs = {f" of {item.name} ({item.arch})": f"{item.name} ({item.arch})" for item in found.outlines}
    return [_tactic_row(tactic, programs) for tactic in found.tactics]


def _tactic_row(tactic: Tactic, programs: Mapping[str, str]) -> TacticRow:
    ending = next((ending for ending in programs if tactic.site.endswith(ending)), "")
    reason = read_reason(tactic.reason)
    return TacticRow(
        operator=tactic.site.removesuffix(ending),
        program=programs.get(ending, ""),
        choice=tuple(tactic.choice.split(", ")),
        reason=reason,
        slowest=reason.series[0].timings[-1] if reason.series else None,
    )


def refusals(not_fused: Mapping[str, str]) -> list[Refusal]:
    """Sites that were refused for the same reason, grouped over layers, ordered by the first site of each group."""
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for site, reason in not_fused.items():
        alike.setdefault((pattern(site), pattern(reason)), []).append((site, reason))
    named = (items[0] if len(items) == 1 else both for both, items in alike.items())
    return [Refusal(site, len(items), reason) for (site, reason), items in zip(named, alike.values(), strict=True)]


def file_rows(found: Inspection) -> Iterator[FileRow]:
    """One row for each file."""
    digests = found.provenance.files if found.provenance else {}
    for name, size in found.file_bytes.items():
        yield FileRow(name, size, found.checksums.get(name, ""), digests.get(name, ""))
