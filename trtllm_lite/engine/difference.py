"""Compares two engines: what they were made of and what they execute, each fact with whether it can change results."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtllm_lite._core import crc32c
from trtllm_lite.engine.format import CUBIN_PREFIX, WEIGHT_PREFIX
from trtllm_lite.engine.manifest import Manifest, Tactic
from trtllm_lite.engine.plan import CompiledKernel, Plan
from trtllm_lite.engine.reader import EngineFile, read_engine
from trtllm_lite.engine.records import json_text, to_json
from trtllm_lite.errors import EngineError
from trtllm_lite.network.config import NETWORK_FILE
from trtllm_lite.printable import one_line

_ROWS_OF_A_SECTION = 8

# The cache's capacity: it bounds how many sequences run at once, not what is computed for one.
_CAPACITY_OF_CACHE = ("num_blocks", "bytes_per_block")


@dataclass(frozen=True)
class Difference:
    """One fact that differs: ``a`` and ``b`` are JSON values, None where the engine has no such fact.

    A list has several facts of one name (kernels that share a function's name, say), but not those of both engines.
    """

    section: str
    name: str
    a: Any
    b: Any
    changes_results: bool


@dataclass(frozen=True)
class Comparison:
    """``differences`` between the engines at the paths ``a`` and ``b``, section by section."""

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
        """Print a table for each section, of its first differences, and whether results can differ."""
        if not self.differences:
            _print_line(console, f"{self.a} and {self.b} do not differ")
            return
        _print_line(console, f"A is {self.a}")
        _print_line(console, f"B is {self.b}")
        for section, differences in groupby(self.differences, key=lambda difference: difference.section):
            _print_section(console, section, list(differences))
        verdict = "can change results (exit code 3)" if self.changes_results else "changes no results (exit code 0)"
        _print_line(console, f"What differs {verdict}")


class _Fact(NamedTuple):
    """``note`` explains ``value`` and has no part in results."""

    section: str
    name: str
    value: Any
    changes_results: bool
    note: str = ""

    def shown(self) -> Any:
        return f"{self.value}: {self.note}" if self.note else self.value


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
    """What differs between two engines, in the order of the sections below. Only descriptions are compared, not files.

    These sections change results (tokens or logits):

    - ``model``: the network's sizes, the ids at which generation ends, and the defaults of sampling.
    - ``quantization``: the scheme decides which values the weights of linear layers are rounded to.
    - ``weights``: type, shape, layout and the CRC-32C that the file holds of each weight's bytes. The weights of a
      stripped engine are made by the runtime.
    - ``kv_cache``: its type rounds keys and values, and its geometry decides which are kept and in what order they are
      summed; but the number of blocks is only capacity.
    - ``target``, ``kernels``, ``tactics``, ``fusions``, ``expansions``: other code, or another choice among kernels,
      rounds in another order. Kernels are compared by the CRC-32C of their cubins and by their launch configuration,
      programs by that of their instructions with the tensors and kernels that these name. Every argument of a kernel
      counts, even the width of GPU block tables, which follows max_seq_len. The key of a cubin and the reason for a
      choice are compared, too, but change nothing.
    - ``files``: a tokenizer decides which tokens a text is.

    These do not:

    - ``limits``: they bound what a step may hold. Where a limit leads to other kernels (max_num_tokens and the decode
      batches may), these differ under ``kernels`` or ``tactics``.
    - ``memory``: where tensors lie has no part in their values.
    - ``accuracy``: it was measured of the weights, and is not read by the runtime.
    - ``producer``: a version that computes otherwise differs in one of the sections above.
    """
    in_a, in_b = _by_name(_facts(a)), _by_name(_facts(b))
    sections = list(dict.fromkeys(section for section, _ in (*in_a, *in_b)))
    names = sorted(dict.fromkeys((*in_a, *in_b)), key=lambda key: sections.index(key[0]))
    pairs = ((key, *_without_common(in_a.get(key, []), in_b.get(key, []))) for key in names)
    return tuple(_difference(*key, one, other) for key, one, other in pairs if one or other)


def _by_name(facts: Iterable[_Fact]) -> dict[tuple[str, str], list[_Fact]]:
    found: dict[tuple[str, str], list[_Fact]] = {}
    for fact in facts:
        found.setdefault((fact.section, fact.name), []).append(fact)
    return found


def _without_common(a: list[_Fact], b: list[_Fact]) -> tuple[list[_Fact], list[_Fact]]:
    """The facts of one name that only ``a`` has, and those that only ``b`` has."""
    only_a, only_b = [], list(b)
    for fact in a:
        if fact in only_b:
            only_b.remove(fact)
        else:
            only_a.append(fact)
    return only_a, only_b


def _difference(section: str, name: str, a: list[_Fact], b: list[_Fact]) -> Difference:
    computed_alike = [fact.value for fact in a] == [fact.value for fact in b]
    changes_results = not computed_alike and any(fact.changes_results for fact in (*a, *b))
    return Difference(section, name, _shown(a), _shown(b), changes_results)


def _shown(facts: list[_Fact]) -> Any:
    values = [fact.shown() for fact in facts]
    return values if len(values) > 1 else next(iter(values), None)


def _facts(engine: EngineFile) -> Iterator[_Fact]:
    manifest, plan = engine.manifest, engine.plan
    yield from _model_facts(manifest)
    yield _Fact("quantization", "qformat", manifest.qformat, True)
    yield from _limit_facts(manifest, plan)
    for name, value in to_json(manifest.kv_cache).items():
        yield _Fact("kv_cache", name, value, name not in _CAPACITY_OF_CACHE)
    for name, value in to_json(manifest.target).items():
        yield _Fact("target", name, value, True)
    yield from _kernel_facts(engine)
    yield from _tactic_facts("tactics", manifest.tactics)
    if plan.cuda is not None:
        yield _Fact("tactics", "workspace_bytes of cuBLASLt", plan.cuda.workspace_bytes, True)
        yield _Fact("tactics", "version of cuBLASLt", plan.cuda.cublaslt_version, True)
    for fusion in manifest.fusions:
        made = "fused" if fusion.fused else "not fused"
        yield _Fact("fusions", f"{fusion.pass_name} {fusion.site}", made, True, fusion.reason)
    yield from _tactic_facts("expansions", manifest.expansions)
    yield from _weight_facts(engine)
    for name, value in to_json(manifest.memory).items():
        yield _Fact("memory", name, value, False)
    for name, value in ({} if manifest.accuracy is None else to_json(manifest.accuracy)).items():
        yield _Fact("accuracy", name, value, False)
    yield _Fact("producer", "engine", manifest.producer, False)
    yield _Fact("producer", "checkpoint", manifest.model.producer, False)
    for name, checksum in manifest.files.items():
        yield _Fact("files", name, f"CRC-32C {checksum}", True)


def _model_facts(manifest: Manifest) -> Iterator[_Fact]:
    for name, value in to_json(manifest.model).items():
        if name != "producer":
            yield _Fact("model", name, value, True)
    yield _Fact("model", "num_parameters", manifest.num_parameters, True)


def _limit_facts(manifest: Manifest, plan: Plan) -> Iterator[_Fact]:
    for name, value in to_json(manifest.limits).items():
        yield _Fact("limits", name, value, False)
    yield _Fact("limits", "gather_context_logits", manifest.gather_context_logits, False)
    if plan.cuda is not None:
        yield _Fact("limits", "decode_batches", list(plan.cuda.decode_batches), False)
    for program in plan.programs:
        yield _Fact("limits", f"max_tokens of program {program.name} ({program.arch})", program.max_tokens, False)


def _kernel_facts(engine: EngineFile) -> Iterator[_Fact]:
    for kernel in engine.plan.kernels:
        keys = ", ".join(f"{arch} from {key}" for arch, key in kernel.cubins.items())
        yield _Fact("kernels", kernel.name, _compiled(engine, kernel), True, keys)
    for program in engine.plan.programs:
        resolved = _resolved(engine, to_json(program.instructions))
        digest = crc32c(json.dumps(resolved, sort_keys=True).encode())
        value = f"{len(program.instructions)} instructions, CRC-32C {digest:08x}"
        yield _Fact("kernels", f"program {program.name} ({program.arch})", value, True)


def _compiled(engine: EngineFile, kernel: CompiledKernel) -> str:
    """A kernel by the content of its cubins and by its launch configuration."""
    cubins = (f"{arch} CRC-32C {engine.checksum(CUBIN_PREFIX + key)}" for arch, key in kernel.cubins.items())
    return ", ".join((*cubins, f"{kernel.threads} threads", f"{kernel.shared_bytes} B shared"))


def _resolved(engine: EngineFile, data: Any) -> Any:
    """Instructions as JSON, in which tensors and kernels are described instead of numbered.

    Offsets in the arena have no part in it, as these depend on limits.
    """

    def tensor(index: int) -> str:
        found = engine.plan.tensors[index]
        return f"{found.name} {found.dtype} {json_text(found.shape)} {found.layout}"

    def entry(key: str, value: Any) -> Any:
        if key == "tensor":
            return tensor(value)
        if key == "operands":
            return {name: tensor(index) for name, index in value.items()}
        if key == "kernel":
            return _compiled(engine, engine.plan.kernels[value])
        return _resolved(engine, value)

    if isinstance(data, dict):
        return {key: entry(key, value) for key, value in data.items()}
    return [_resolved(engine, item) for item in data] if isinstance(data, list) else data


def _tactic_facts(section: str, tactics: Iterable[Tactic]) -> Iterator[_Fact]:
    for tactic in tactics:
        yield _Fact(section, tactic.site, tactic.choice, True, tactic.reason)


def _weight_facts(engine: EngineFile) -> Iterator[_Fact]:
    stripped = engine.manifest.stripped
    yield _Fact("weights", "stripped", stripped, True)
    for tensor in engine.plan.tensors:
        if tensor.kind == "weight":
            data = "not in the file" if stripped else f"CRC-32C {engine.checksum(WEIGHT_PREFIX + tensor.name)}"
            kind = f"{tensor.dtype} {json_text(tensor.shape)} {tensor.layout}"
            yield _Fact("weights", tensor.name, f"{kind}, {data}", True)


def _print_line(console: Console, text: str) -> None:
    console.print(Text(one_line(text)), soft_wrap=True)


def _print_section(console: Console, section: str, differences: list[Difference]) -> None:
    table = Table(title=Text(section), title_justify="left", box=None, padding=(0, 2, 0, 2))
    for name in ("", "A", "B"):
        table.add_column(name, overflow="fold")
    for difference in differences[:_ROWS_OF_A_SECTION]:
        cells = (difference.name, _cell(difference.a), _cell(difference.b))
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    console.print(table)
    if len(differences) > _ROWS_OF_A_SECTION:
        _print_line(console, f"    and {len(differences) - _ROWS_OF_A_SECTION} more; --json lists all")


def _cell(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json_text(value)
