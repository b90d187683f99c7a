"""Finds the family whose tensors are most like those of a source, and refuses models of no known family with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeAlias

from trtllm_lite.common.printable import one_line
from trtllm_lite.convert.family import Family, all_families, nearest_by_name
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fitting import compare_tensors, named_for
from trtllm_lite.convert.matching import Mismatch, listed
from trtllm_lite.convert.refusal import FAMILIES_PAGE, FEW, kind_of_tensor, refused
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.convert.sources.text_model import as_if_text
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.dtypes import ONNX
from trtllm_lite.network.model import network_of

Shapes: TypeAlias = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Fit:
    """The comparison of a source with a family.

    ``unread`` are keys that switch on something the family lacks. ``kinds`` are the kinds of the tensors that it reads,
    or can read. ``likeness`` is the share of kinds that source and family both have in all kinds that one of them has;
    a kind whose shape differs counts half.
    """

    family: Family
    mismatch: Mismatch
    unread: tuple[str, ...]
    kinds: frozenset[str]
    likeness: float

    def report(self) -> list[str]:
        """One line per kind of difference; empty if there is none."""
        lines = [self.mismatch.report(FEW)] if self.mismatch.count else []
        return [*lines, *([f"unknown config keys: {listed(self.unread, FEW)}"] if self.unread else [])]


def _fits(source: Source) -> list[Fit]:
    """The fits of all families; without those of whose config the tensors are too few for all layers."""
    return [fit for family in all_families().values() if (fit := _fit(family, source)) is not None]


def nearest_fit(source: Source) -> Fit | None:
    """The fit of the family whose tensors are most alike; the fewest differing ones and the name break ties.

    None if no family has any tensor of the source, or these are too few for a model of the config's size.
    """
    return _nearest(source, _fits(source))


def _nearest(source: Source, fits: Sequence[Fit]) -> Fit | None:
    model_type = source.config.get("model_type")
    names = [*(source.config.get("architectures") or []), *([model_type] if isinstance(model_type, str) else [])]

    def distance(fit: Fit) -> tuple[float, int, float]:
        own = (fit.family.name, *fit.family.all_architectures)
        alike = max((SequenceMatcher(None, name, known).ratio() for name in names for known in own), default=0.0)
        return -fit.likeness, fit.mismatch.count, -alike

    return min((fit for fit in fits if fit.likeness), key=distance, default=None)


def unsupported(architectures: Sequence[str], source: Source | None = None) -> ConvertError:
    """The error for a model of no known family: it names the families that are nearest by tensors and by name.

    ``source`` has the model's config and tensors, if they can be read; of a multimodal one the text model counts.
    """
    what = (
        f"architecture {', '.join(map(one_line, architectures))} is not supported, expected one of those that "
        f"{FAMILIES_PAGE} lists"
    )
    by_name = f"nearest by name: {', '.join(nearest_by_name(architectures[0]))}"
    source = None if source is None else as_if_text(source)
    fits = [] if source is None else _fits(source)
    if source is None or not fits:
        return refused(what, [by_name])
    mapped = frozenset[str]().union(*(fit.kinds for fit in fits))
    unknown = [name for name in source.tensors if kind_of_tensor(name) not in mapped]
    tensors = [name for name in unknown if not any(fit.family.ignores(name) for fit in fits)]
    unread = set(fits[0].unread).intersection(*(fit.unread for fit in fits))
    return refused(what, [*_about(_nearest(source, fits), source), by_name], tensors, unread)


def _about(fit: Fit | None, source: Source) -> list[str]:
    if fit is None:
        return [f"nearest by tensors: none, as no family has any of its {len(source.tensors)} tensors"]
    count, whose = fit.mismatch.count, "tensors of its text model" if source.is_text_part else "its tensors"
    verdict = f"{count} of {whose} differ" if count else f"all {whose} fit"
    return [f"nearest by tensors: the family {fit.family.name} ({verdict})", *fit.report()]


def _fit(family: Family, source: Source) -> Fit | None:
    fields = ConfigFields(family.config_of(source.config, source.tensors))
    model = family.read_model(fields)
    if model.sizes.num_hidden_layers > len(source.tensors):
        return None
    network = network_of(model, ONNX["float32"])
    named = named_for(family, source)
    mismatch = compare_tensors(named, family, model, network)
    needed = {tensor.name: tensor.shape for weight in network.weights for tensor in weight.expression.sources()}
    found = {name: info.shape for name, info in named.tensors.items()}
    roles = [f"{name}.{part}" for name in family.tensor_names.values() for part in ("weight", "bias")]
    kinds = {kind_of_tensor(name) for name in (*needed, *roles)}
    kinds |= {kind.removeprefix(family.optional_prefix) for kind in kinds}
    return Fit(family, mismatch, tuple(fields.unread()), frozenset(kinds), _likeness(needed, found))


def _likeness(needed: Shapes, found: Shapes) -> float:
    """The share of kinds that are in both in those that are in one; the first tensor of a kind gives its shape."""
    wanted, present = (
        {kind_of_tensor(name): shape for name, shape in reversed(shapes.items())} for shapes in (needed, found)
    )
    common = wanted.keys() & present.keys()
    alike = sum(1.0 if wanted[kind] == present[kind] else 0.5 for kind in common)
    return alike / len(wanted.keys() | present.keys())
