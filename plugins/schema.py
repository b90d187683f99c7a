"""Reads ``plugins/<op>/schema.toml``: the single source of an operator's inputs, outputs and attributes.

Consumers: the graph verifier and the plan verifier of the builder, the numpy references, and ``generate_cpp.py``,
which turns the same files into the C++ headers that kernels and the engine reader compile against.

Standard library only: the C++ build runs it before anything is installed.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from trtllm_lite.common.vocabulary import CACHE_KINDS, DTYPES, LAYOUTS
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.packages import OWN, PluginPackage, other_packages

DOMAIN = "trtllm_lite"
DOMAIN_VERSION = 1
MAX_TEXT_LENGTH = 1024
_MOST_KINDS = 2  # of heads
TEXT_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789_ "


@dataclass(frozen=True)
class Argument:
    """One input or output.

    ``shape`` holds integers and symbols; a symbol means the same extent everywhere within one call.
    ``layouts`` is how a weight may be stored (see ``LAYOUTS`` in ``plugins/README.md``); activations are row-major.
    ``alias`` (outputs only) names the input whose storage the output is: the operator updates it in place.
    ``cache`` (inputs only) says that this is a paged cache, and of which of ``CACHE_KINDS``; its shape is num_blocks,
    tokens_per_block and the extents of a token. A cache of states has num_blocks and the extents of a state.
    ``step_input`` (int32 inputs) names the step input that must be passed here, because
    kernels use its integers as indices and only the step checks them; ``below`` is the symbol that bounds those from
    above.
    ``state`` (int32 inputs, int64 outputs) says that this is memory of the engine, zero at load and kept between steps;
    to such an output the operator adds what it counts. Every int64 output is state.
    ``constant`` (int32 inputs only) says that this is a weight, whose values are indices: when an engine is loaded, all
    are found to be at least 0 and below ``below``.
    ``checked`` (int32 inputs only) says that operators compute the values, which are indices, and that kernels skip
    those that are not at least 0 and below ``below``. Every int32 input is a step input, state, constant, or checked.
    ``present_with`` (optional inputs only) names an optional input: a call has both or neither.
    ``scaled_by`` names the optional input that holds the scales of this one: a call has it if and only if the dtype of
    this one wants scales (``DType.scaled``).
    ``columns`` (inputs only) says that the operator may read rows of a wider value in place: it names the extent of
    those columns that it reads, from the column ``<name>_first`` on, an attribute. Constraints on both are implied.
    ``heads`` says what the last axis holds, or the columns that are read, part after part: of all heads of a kind,
    which is one of the operator's ``heads``, the features of each (``value_heads * value_dim``). Axes whose extent is a
    number of heads need none.
    """

    name: str
    doc: str
    dtypes: tuple[str, ...]
    shape: tuple[int | str, ...]
    layouts: tuple[str, ...] = ("row_major",)
    optional: bool = False
    alias: str | None = None
    cache: str | None = None
    step_input: str | None = None
    state: bool = False
    constant: bool = False
    checked: bool = False
    below: str | None = None
    present_with: str | None = None
    scaled_by: str | None = None
    columns: str | None = None
    heads: tuple[str, ...] = ()

    @property
    def first(self) -> str:
        """The attribute that says where the columns begin, if the operator may read rows of a wider value."""
        return f"{self.name}_first"

    @property
    def features(self) -> int | str:
        """The extent of what the operator reads of a row."""
        return self.columns or self.shape[-1]

    @property
    def is_row(self) -> bool:
        """Whether this holds rows of activations that operators make; a weight may take their place."""
        return not (self.cache or self.step_input or self.state or self.constant or self.checked or self.alias)


@dataclass(frozen=True)
class Attribute:
    """One attribute: ``type`` is ``int``, ``float`` or ``str``; every attribute is required.

    A ``str`` is one of ``choices`` (kernels see its position among them), or, without choices, a text of at most
    ``MAX_TEXT_LENGTH`` characters of ``TEXT_CHARACTERS``, which the operator's ``check`` reads.
    """

    name: str
    doc: str
    type: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """One fused operator: ``name`` is the op_type in :data:`DOMAIN`, ``folder`` its folder and C++ namespace.

    ``constraints`` relate shape symbols and int attributes, e.g. ``half_dim * 2 == head_dim``: one comparison each, of
    integers, names, ``+``, ``-``, ``*`` and ``%``. A constraint with a symbol that only absent operands have is not
    checked. ``check`` says that ``check.h`` beside the schema checks what else a valid call fulfils. All ranks compute
    a ``collective`` together: plans of CPUs have instructions of its folder's name instead of calls.

    Ranks divide an operator by ``heads`` or by ``channels`` (builder/sharding/by_schema.py). ``heads`` names one or two
    extents or attributes that are numbers of heads. The operator treats each head of the first kind by itself, together
    with the one of the second kind that serves it and equally many successive others. ``channels`` names an extent
    whose elements the operator treats each by itself, or in groups: the constraints that name it hold where a rank's
    part begins and ends as well. ``channel_groups`` names the extent that counts these groups, if there is one.

    ``package`` is what the operator is installed with: this package, or another one (``packages.py``).
    """

    name: str
    folder: str
    doc: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    attributes: tuple[Attribute, ...]
    constraints: tuple[str, ...] = ()
    check: bool = False
    collective: bool = False
    heads: tuple[str, ...] = ()
    channels: str | None = None
    channel_groups: str | None = None
    package: PluginPackage = OWN

    def part(self, name: str) -> ModuleType:
        """The module ``name`` of the operator's folder: ``reference`` or ``cuda``. Raises ImportError."""
        return import_module(f"{self.package.module}.{self.folder}.{name}")

    @property
    def keeps_state(self) -> bool:
        """Whether the operator has memory that is kept between steps.

        Passes for a device put such operators into programs; networks have none.
        """
        return any(argument.state for argument in self.inputs)

    @property
    def caches(self) -> tuple[Argument, ...]:
        """The paged caches that the operator reads or updates."""
        return tuple(argument for argument in self.inputs if argument.cache is not None)

    @property
    def caches_layer(self) -> bool:
        """Whether the operator keeps the caches of a layer, in the blocks of its ``cache_group``."""
        return bool(self.caches) and any(attribute.name == "cache_group" for attribute in self.attributes)

    def reads_step_input(self, name: str) -> bool:
        """Whether the operator reads the step input ``name``."""
        return any(argument.step_input == name for argument in self.inputs)

    def input_index(self, name: str) -> int:
        """Position of the input called ``name``."""
        return [argument.name for argument in self.inputs].index(name)

    def output(self, name: str) -> Argument:
        """The output called ``name``."""
        return next(argument for argument in self.outputs if argument.name == name)


def _argument(entry: dict) -> Argument:
    entry = dict(entry)
    dtypes = tuple(entry.pop("dtypes"))
    layouts, heads = (tuple(entry.pop(key, value)) for key, value in (("layouts", ("row_major",)), ("heads", ())))
    unknown = (set(dtypes) - DTYPES.keys()) | (set(layouts) - set(LAYOUTS))
    if unknown:
        raise ValueError(f"argument {entry['name']}: unknown dtype or layout {sorted(unknown)}")
    return Argument(dtypes=dtypes, layouts=layouts, heads=heads, shape=tuple(entry.pop("shape")), **entry)


def _input(entry: dict) -> Argument:
    argument = _argument(entry)
    kinds = (argument.step_input is not None) + argument.state + argument.constant + argument.checked
    if kinds != ("int32" in argument.dtypes):
        raise ValueError(
            f"input {argument.name}: expected step_input, state, constant or checked for an int32 input, for no other"
        )
    if argument.cache is not None and not _is_cache(argument):
        raise ValueError(
            f"input {argument.name}: expected a cache of a kind in {CACHE_KINDS}, with num_blocks and, unless it is a "
            "cache of states, tokens_per_block in its shape"
        )
    if (argument.constant or argument.checked) and argument.below is None:
        raise ValueError(f"input {argument.name}: expected below, the symbol that bounds the indices")
    return argument


def _is_cache(argument: Argument) -> bool:
    """Whether ``argument`` is of a known kind, and has the axes of that kind."""
    axes = {"num_blocks", "tokens_per_block"} & set(argument.shape)
    expected = {"num_blocks"} if argument.cache == "state" else {"num_blocks", "tokens_per_block"}
    return argument.cache in CACHE_KINDS and axes == expected


def _output(entry: dict) -> Argument:
    argument = _argument(entry)
    if argument.step_input is not None or argument.cache is not None or argument.constant or argument.checked:
        raise ValueError(
            f"output {argument.name}: found step_input, cache, constant or checked, which only inputs have"
        )
    if argument.state != (argument.dtypes == ("int64",)):
        raise ValueError(f"output {argument.name}: expected state = true for an int64 output, for no other")
    return argument


def _attribute(name: str, entry: dict) -> Attribute:
    attribute = Attribute(name=name, choices=tuple(entry.pop("choices", ())), **entry)
    if attribute.type not in ("int", "float", "str") or (attribute.choices and attribute.type != "str"):
        raise ValueError(f"attribute {name}: expected the type int, float or str, and choices for a str only")
    return attribute


def load_schema(path: Path, package: PluginPackage = OWN) -> Schema:
    """Parse one ``schema.toml`` of ``package``; unknown keys are errors."""
    raw = tomllib.loads(path.read_text())
    attributes = tuple(_attribute(name, dict(value)) for name, value in raw.pop("attributes", {}).items())
    inputs = tuple(_input(entry) for entry in raw.pop("inputs"))
    schema = Schema(
        name=raw.pop("name"),
        folder=path.parent.name,
        doc=raw.pop("doc"),
        inputs=inputs,
        outputs=tuple(_output(entry) for entry in raw.pop("outputs")),
        attributes=attributes,
        constraints=(*raw.pop("constraints", ()), *_within_rows(inputs)),
        check=raw.pop("check", False),
        collective=raw.pop("collective", False),
        heads=tuple(raw.pop("heads", ())),
        channels=raw.pop("channels", None),
        channel_groups=raw.pop("channel_groups", None),
        package=package,
    )
    if raw:
        raise ValueError(f"{path}: unknown keys {sorted(raw)}")
    _check_division(schema)
    _check_columns(schema)
    return schema


def _within_rows(inputs: tuple[Argument, ...]) -> list[str]:
    """The constraints that columns which are read of wider rows lie within these."""
    read = [argument for argument in inputs if argument.columns is not None]
    begins = [f"{argument.first} >= 0" for argument in read]
    return begins + [f"{argument.first} <= {argument.shape[-1]} - {argument.columns}" for argument in read]


def _check_columns(schema: Schema) -> None:
    """Raise ValueError if an argument has columns of which the schema does not say where they begin or end."""
    integers = {attribute.name for attribute in schema.attributes if attribute.type == "int"}
    for argument in (*schema.inputs, *schema.outputs):
        others = {axis for other in (*schema.inputs, *schema.outputs) if other is not argument for axis in other.shape}
        is_known = argument.first in integers and argument.columns in others and argument.shape[-1] not in others
        if argument.columns is not None and not (argument in schema.inputs and argument.is_row and is_known):
            raise ValueError(
                f"argument {argument.name}: expected columns in rows of an input, an extent of another argument, and "
                f"the attribute {argument.first}, an int; found {argument.columns}"
            )


def _check_division(schema: Schema) -> None:
    """Raise ValueError if the schema says how ranks divide the operator, and names what it does not have."""
    arguments = (*schema.inputs, *schema.outputs)
    extents = {axis for argument in arguments for axis in argument.shape if isinstance(axis, str)}
    names = extents | {attribute.name for attribute in schema.attributes}
    named = {*schema.heads, *(name for name in (schema.channels, schema.channel_groups) if name is not None)}
    if len(schema.heads) > _MOST_KINDS or (schema.heads and schema.channels) or not named <= names:
        raise ValueError(f"{schema.name}: expected heads of one or two kinds, or channels, found {sorted(named)}")
    for argument in arguments:
        parts = [part.partition(" * ") for part in argument.heads]
        if not all(kind in schema.heads and each in names for kind, _, each in parts):
            raise ValueError(
                f"argument {argument.name}: expected heads like 'value_heads * value_dim', of a kind in "
                f"{schema.heads}, found {argument.heads}"
            )


def schemas_of(package: PluginPackage) -> dict[str, Schema]:
    """The operators of ``package``, by name, in alphabetical order of folder."""
    schemas = (load_schema(path, package) for path in package.schemas)
    return {schema.name: schema for schema in schemas}


@cache
def all_schemas() -> dict[str, Schema]:
    """Every operator, by name: those of this package, then those of other installed packages.

    Raises BuildError if another package has a schema that does not parse, or an operator that there is already.
    """
    schemas = schemas_of(OWN)
    for package in other_packages():
        try:
            others = schemas_of(package)
        except (ValueError, LookupError, TypeError) as error:
            raise BuildError(f"the package {package.name} has a schema.toml that is wrong: {error}: mend it") from error
        folders = {schema.folder: schema for schema in schemas.values()}
        for schema in others.values():
            twin = schemas.get(schema.name) or folders.get(schema.folder)
            if twin is not None:
                raise BuildError(
                    f"the package {package.name} has the operator {schema.name} in the folder {schema.folder}, and "
                    f"{twin.package.name} has {twin.name} in {twin.folder}: expected names that no other operator has; "
                    "rename it, or uninstall one of the packages"
                )
        schemas |= others
    return schemas


@cache
def network_schemas() -> dict[str, Schema]:
    """The operators that networks may have, by name."""
    return {name: schema for name, schema in all_schemas().items() if not schema.keeps_state}
