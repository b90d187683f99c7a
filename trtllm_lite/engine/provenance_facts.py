"""Turns the provenance statements beside two engines into facts, which can be compared."""

from collections.abc import Iterator

from trtllm_lite.common.units import counted
from trtllm_lite.engine.facts import Fact
from trtllm_lite.engine.provenance import PROVENANCE_FILE, Provenance, read_provenance
from trtllm_lite.engine.reader import EngineFile

_SECTION = "provenance"
_CODE = "trtllm_lite"  # the material that is the code of this project, not a file


def provenance_of(engine: EngineFile) -> Provenance | None:
    """The statement beside an engine; None if there is none. Raises EngineError if it is damaged."""
    directory = engine.path.parent
    return read_provenance(directory) if (directory / PROVENANCE_FILE).is_file() else None


def provenance_facts(a: EngineFile, b: EngineFile) -> tuple[list[Fact], list[Fact]]:
    """The facts of each engine; if only one has a statement, its existence is the only fact."""
    of_a, of_b = provenance_of(a), provenance_of(b)
    if of_a is not None and of_b is not None:
        return list(_facts(of_a)), list(_facts(of_b))
    return _summary(of_a), _summary(of_b)


def _summary(found: Provenance | None) -> list[Fact]:
    if found is None:
        return []
    return [Fact(_SECTION, PROVENANCE_FILE, f"names {counted(len(found.materials), 'source')}", False)]


def _facts(found: Provenance) -> Iterator[Fact]:
    """Options, sources and versions; the engine's own files are compared by their content elsewhere."""
    for part, options in found.parameters.items():
        for name, value in (options if isinstance(options, dict) else {"": options}).items():
            yield Fact(_SECTION, f"option {part} {name}".rstrip(), value, False)
    for material in found.materials:
        name = "code" if material.name == _CODE else f"source {material.name}"
        digests = ", ".join(f"{algorithm} {digest}" for algorithm, digest in material.digest.items())
        yield Fact(_SECTION, name, digests, False)
    for package, version in found.versions.items():
        yield Fact(_SECTION, f"version of {package}", version, False)
