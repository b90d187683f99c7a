"""Compares two engines by facts about their origins and programs; each fact tells whether it can change results."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from trtllm_lite.engine.difference_text import print_comparison
from trtllm_lite.engine.facts import Fact, facts_of
from trtllm_lite.engine.provenance_facts import provenance_facts
from trtllm_lite.engine.reader import EngineFile, read_engine
from trtllm_lite.errors import EngineError
from trtllm_lite.network.config import NETWORK_FILE


@dataclass(frozen=True)
class Difference:
    """One fact that differs: ``a`` and ``b`` are JSON values, None where the engine has no such fact.

    A list holds several facts of one name (such as kernels that share a function's name), without those common to both
    engines.
    """

    section: str
    name: str
    a: Any
    b: Any
    changes_results: bool


@dataclass(frozen=True)
class Comparison:
    """The ``differences`` between the engines at the paths ``a`` and ``b``, section by section."""

    a: str
    b: str
    differences: tuple[Difference, ...]

    @property
    def changes_results(self) -> bool:
        """Whether tokens or logits of the engines can differ."""
        return any(difference.changes_results for difference in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        plain = asdict(self)
        return plain | {"differences": list(plain["differences"]), "changes_results": self.changes_results}

    def render(self, console: Console) -> None:
        """Print whether results can differ, and a table for each section with its first differences."""
        print_comparison(self, console)


def compare_paths(a: Path, b: Path) -> Comparison:
    """Compare two engine directories or files; weights are not read.

    Raises EngineError if one is a checkpoint, absent or damaged.
    """
    for path in (a, b):
        if (Path(path) / NETWORK_FILE).is_file():
            raise EngineError(
                f"expected two engines to compare, but {path} is a checkpoint: build it with `trtllm-lite build`, and "
                "pass the output_dir"
            )
    return Comparison(str(a), str(b), compare_engines(read_engine(a), read_engine(b)))


def compare_engines(a: EngineFile, b: EngineFile) -> tuple[Difference, ...]:
    """The differences of two engines, in the order of the sections below. Only descriptions are compared, not files.

    These sections change results (tokens or logits):

    - ``model``: the network's sizes, the ids at which generation ends, and the defaults of sampling; but the number of
      parameters changes no result.
    - ``quantization``: the scheme decides which values the weights of linear layers are rounded to.
    - ``weights``: type, shape, layout and the CRC-32C that the file holds of each weight's bytes. The weights of a
      stripped engine are made by the runtime.
    - ``kv_cache``: its type rounds keys and values, and its geometry decides which are kept and in what order they are
      summed; but the number of blocks is only capacity.
    - ``target``, ``kernels``, ``tactics``, ``fusions``, ``expansions``: other code, or another choice among kernels,
      rounds in another order. Kernels are compared by the CRC-32C of their cubins and by their launch configuration,
      programs by the CRC-32C of their instructions, tensors and kernels. The key of a cubin and the
      reason for a choice are compared, too, but change nothing. Two arguments of GPU kernels follow max_seq_len alone
      and are no difference: the width of block tables (``max_blocks_per_seq``; offsets into tables count in rows), and
      the room for edits of logits, which is listed with the limits.
    - ``files``: a tokenizer decides which tokens a text is.

    These do not:

    - ``provenance``: options, sources' digests and versions that the statements beside the engines name; if only one
      engine has a statement, its existence is the difference. They explain the other sections and change nothing, not
      even the sources of the model: all that a runtime reads (weights, programs, tokenizer, defaults of sampling) is
      compared above, while a source's digest also changes with what no engine holds, such as a README or the order of
      tensors in a file.
    - ``limits``: they bound what a step may hold. Where a limit leads to other kernels (max_num_tokens and the decode
      batches may), these differ under ``kernels`` or ``tactics``.
    - ``memory``: where tensors lie has no part in their values.
    - ``accuracy``, ``states``: the build measured them, and the runtime does not read them. (The type of states is in
      ``kv_cache``, too.)
    - ``producer``: a version that computes otherwise differs in one of the sections above.
    """
    made_a, made_b = provenance_facts(a, b)
    in_a, in_b = _by_name((*made_a, *facts_of(a))), _by_name((*made_b, *facts_of(b)))
    sections = list(dict.fromkeys(section for section, _ in (*in_a, *in_b)))
    names = sorted(dict.fromkeys((*in_a, *in_b)), key=lambda key: sections.index(key[0]))
    pairs = ((key, *_without_common(in_a.get(key, []), in_b.get(key, []))) for key in names)
    return tuple(_difference(*key, one, other) for key, one, other in pairs if one or other)


def _by_name(facts: Iterable[Fact]) -> dict[tuple[str, str], list[Fact]]:
    found: dict[tuple[str, str], list[Fact]] = {}
    for fact in facts:
        found.setdefault((fact.section, fact.name), []).append(fact)
    return found


def _without_common(a: list[Fact], b: list[Fact]) -> tuple[list[Fact], list[Fact]]:
    """The facts of one name that only ``a`` has, and those that only ``b`` has."""
    only_a, only_b = [], list(b)
    for fact in a:
        if fact in only_b:
            only_b.remove(fact)
        else:
            only_a.append(fact)
    return only_a, only_b


def _difference(section: str, name: str, a: list[Fact], b: list[Fact]) -> Difference:
    computed_alike = [fact.value for fact in a] == [fact.value for fact in b]
    changes_results = not computed_alike and any(fact.changes_results for fact in (*a, *b))
    return Difference(section, name, _shown(a), _shown(b), changes_results)


def _shown(facts: list[Fact]) -> Any:
    values = [fact.shown() for fact in facts]
    return values if len(values) > 1 else next(iter(values), None)
