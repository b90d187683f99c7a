"""Reads ``plugins/<op>/schema.toml``: the single source of an operator's inputs, outputs and attributes.

Consumers: the graph verifier and the plan verifier of the builder, the numpy references, and ``generate_cpp.py``,
which turns the same files into the C++ headers that kernels and the engine reader compile against.

Standard library only: the C++ build runs it before anything is installed.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trtllm_lite.engine.vocabulary import DTYPES, LAYOUTS

DOMAIN = "trtllm_lite"
DOMAIN_VERSION = 1
PLUGIN_ROOT = Path(__file__).parent


@dataclass(frozen=True)
class Argument:
    """One input or output.

    ``shape`` holds integers and symbols; a symbol means the same extent everywhere within one call.
    ``layouts`` is how a weight may be stored (see ``LAYOUTS`` in ``plugins/README.md``); activations are row-major.
    ``alias`` (outputs only) names the input whose storage the output is: the operator updates it in place.
    ``step_input`` (int32 inputs only) names the step input that must be passed here, because kernels use its values as
    indices and only the step checks them; ``below`` is the symbol that bounds those values from above.
    """

    name: str
    doc: str
    dtypes: tuple[str, ...]
    shape: tuple[int | str, ...]
    layouts: tuple[str, ...] = ("row_major",)
    optional: bool = False
    alias: str | None = None
    step_input: str | None = None
    below: str | None = None


@dataclass(frozen=True)
class Attribute:
    """One attribute: ``type`` is ``int`` or ``float``; every attribute is required."""

    name: str
    doc: str
    type: str


@dataclass(frozen=True)
class Schema:
    """One fused operator: ``name`` is the op_type in :data:`DOMAIN`, ``folder`` its folder and C++ namespace.

    ``constraints`` relate shape symbols and int attributes, e.g. ``half_dim * 2 == head_dim``: one comparison each, of
    integers, names, ``+``, ``-``, ``*`` and ``%``.
    """

    name: str
    folder: str
    doc: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    attributes: tuple[Attribute, ...]
    constraints: tuple[str, ...] = ()

    def input_index(self, name: str) -> int:
        """Position of the input called ``name``."""
        return [argument.name for argument in self.inputs].index(name)


def _argument(entry: dict) -> Argument:
    entry = dict(entry)
    dtypes = tuple(entry.pop("dtypes"))
    layouts = tuple(entry.pop("layouts", ("row_major",)))
    unknown = (set(dtypes) - DTYPES.keys()) | (set(layouts) - set(LAYOUTS))
    if unknown:
        raise ValueError(f"argument {entry['name']}: unknown dtype or layout {sorted(unknown)}")
    argument = Argument(dtypes=dtypes, layouts=layouts, shape=tuple(entry.pop("shape")), **entry)
    if ("int32" in dtypes) != (argument.step_input is not None):
        raise ValueError(f"argument {argument.name}: an int32 input, and no other, names its step_input")
    return argument


def load_schema(path: Path) -> Schema:
    """Parse one ``schema.toml``; unknown keys are errors."""
    raw = tomllib.loads(path.read_text())
    attributes = tuple(Attribute(name=name, **value) for name, value in raw.pop("attributes", {}).items())
    schema = Schema(
        name=raw.pop("name"),
        folder=path.parent.name,
        doc=raw.pop("doc"),
        inputs=tuple(_argument(entry) for entry in raw.pop("inputs")),
        outputs=tuple(_argument(entry) for entry in raw.pop("outputs")),
        attributes=attributes,
        constraints=tuple(raw.pop("constraints", ())),
    )
    if raw:
        raise ValueError(f"{path}: unknown keys {sorted(raw)}")
    return schema


@cache
def all_schemas() -> dict[str, Schema]:
    """Every operator, by name, in alphabetical order of folder."""
    schemas = (load_schema(path) for path in sorted(PLUGIN_ROOT.glob("*/schema.toml")))
    return {schema.name: schema for schema in schemas}
