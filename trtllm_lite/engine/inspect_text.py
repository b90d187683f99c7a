"""Prints an inspection as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtllm_lite.common.printable import one_line
from trtllm_lite.common.units import format_bytes
from trtllm_lite.engine.cache_use import CacheUse
from trtllm_lite.engine.contents import FusionSummary, counted_expansions
from trtllm_lite.engine.manifest import Tactic

if TYPE_CHECKING:
    from trtllm_lite.engine.inspect import EncoderBeside, Inspection


def print_inspection(found: Inspection, console: Console, *, kernels: bool) -> None:
    """Print ``found``; with ``kernels`` also how each kernel and product of a GPU engine was chosen."""
    made_for = f" for {found.target}" if found.target else ""
    console.print(Text.assemble((found.kind, "bold"), " ", one_line(found.path)), soft_wrap=True)
    console.print(Text(one_line(f"made by {found.producer}{made_for}")), soft_wrap=True)
    if found.qformat:
        console.print(Text(one_line(f"weights of linear layers: {found.qformat}")), soft_wrap=True)
    if found.encoder is not None:
        facts = ", ".join(f"{name} {as_text(value)}" for name, value in encoder_facts(found.encoder).items())
        console.print(Text(one_line(f"beside it: {facts}")), soft_wrap=True)
    _print_table(console, "accuracy", {} if found.accuracy is None else asdict(found.accuracy))
    _print_table(console, "model", found.model)
    _print_table(console, "modules", ports_of(found))
    _print_table(console, "limits", limits_of(found))
    _print_table(console, "KV cache", {name: value for name, value in found.kv_cache.items() if name != "groups"})
    _print_cache_use(console, found.cache_use)
    _print_table(console, "states of recurrent layers", found.states)
    _print_table(console, "memory", {name: exact_bytes(size) for name, size in found.memory.items()})
    _print_table(console, "weights by type", _weights_by_type(found))
    _print_table(console, "files", {name: exact_bytes(size) for name, size in found.file_bytes.items()})
    _print_table(console, "operators", found.operators)
    _print_table(console, "operators of other packages", found.plugins)
    _print_table(console, "programs: launches and products of a step", found.programs)
    _print_fusions(console, found.fusions)
    _print_table(console, "expanded weights", counted_expansions(found.expansions))
    _print_tactics(console, found.tactics, kernels)


def _weights_by_type(found: Inspection) -> dict[str, str]:
    """The bytes of an engine's weights by type, which the scheme does not tell if the checkpoint stores blocks."""
    sizes: Counter[str] = Counter()
    for group in found.weights:
        sizes[group.dtype] += group.num_bytes
    return {dtype: exact_bytes(size) for dtype, size in sizes.most_common()}


def encoder_facts(encoder: EncoderBeside) -> dict[str, Any]:
    """What is shown of the encoder in the engine's directory."""
    size, weights = encoder.embedding_size, exact_bytes(encoder.weights)
    return {encoder.kind: encoder.architecture, "embedding_size": size, "weights": weights, **encoder.limits}


def ports_of(found: Inspection) -> dict[str, str]:
    """What flows in and out of each module."""
    ports: dict[str, str] = {}
    for module in found.modules:
        ports |= {f"{module.name} takes": "; ".join(map(str, module.inputs))} if module.inputs else {}
        ports[f"{module.name} makes"] = "; ".join(map(str, module.outputs))
    return ports


def limits_of(found: Inspection) -> dict[str, Any]:
    """The limits, whether logits of prompts are available, and whether results depend on a request alone."""
    if found.gather_context_logits is None:
        return found.limits
    flags = {"gather_context_logits": found.gather_context_logits, "deterministic": found.deterministic}
    return {**found.limits, **{name: "yes" if flag else "no" for name, flag in flags.items()}}


def exact_bytes(size: int) -> str:
    """``size`` for people, with the exact number beside it."""
    short = format_bytes(size)
    return short if short.endswith(" B") else f"{short} ({size:,} B)"


def as_text(value: Any) -> str:
    """A fact of a file in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _print_table(console: Console, title: str, rows: Mapping[str, Any]) -> None:
    """Print a table of texts from a file literally, without rich's markup or terminal escapes."""
    if not rows:
        return
    table = Table(title=Text(one_line(title)), title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 2))
    for name, value in rows.items():
        table.add_row(Text(one_line(name)), Text(one_line(as_text(value))))
    console.print(table)


def _print_cache_use(console: Console, use: CacheUse | None) -> None:
    if use is not None:
        rows = {group.name: group.describe() for group in use.groups}
        _print_table(console, "cache groups", rows | {"in all": use.describe()})


def _print_fusions(console: Console, fusions: tuple[FusionSummary, ...]) -> None:
    _print_table(console, "fusions", {item.pass_name: f"{item.fused} of {item.candidates}" for item in fusions})
    for item in fusions:
        _print_table(console, f"not fused by {item.pass_name}", item.not_fused)


def _print_tactics(console: Console, tactics: tuple[Tactic, ...], all_of_them: bool) -> None:
    if all_of_them:
        _print_table(console, "tactics", {item.site: f"{item.choice}: {item.reason}" for item in tactics})
    elif tactics:
        _print_table(console, "tactics", {"choices made": f"{len(tactics)}; --kernels lists them with their reasons"})
