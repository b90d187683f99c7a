"""The declaration of a model family, and the registry that finds families by architecture."""

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.sources.safetensors_file import TensorInfo
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.model import Model

ENTRY_POINT_GROUP = "trtllm_lite.families"

# Whether a tensor's shape fits a config.
ShapeTest = Callable[[Mapping[str, Any], tuple[int, ...]], bool]

# Buffers that old versions of transformers saved; they can be computed from the config.
ROTARY_BUFFERS = (r"(model\.layers\.\d+\.self_attn|model)\.rotary_emb\.inv_freq",)

# Tensors in GGUF files of layers that draft (MTP), which come after the others: those that have no role.
GGUF_DRAFTING_TENSORS = (r"blk\.\d+\.nextn\..*",)


@dataclass(frozen=True)
class Gguf:
    """How llama.cpp stores the family (its conversion/ folder; names in gguf-py/gguf/tensor_mapping.py).

    ``architecture`` is the file's general.architecture; ``also`` lists further names whose files are read alike,
    because llama.cpp stores their models in the same form. ``roles`` maps names of tensors to their roles, ``keys``
    maps metadata keys (without the architecture) to keys of config.json; both list what differs from most families.
    ``config`` is given the config so far and returns the entries that are still missing, in Hugging Face's terms.

    The conversion undoes what llama.cpp changes in tensors. With ``interleaved_rope`` llama.cpp has reordered the rows
    of the query and key projections so that RoPE rotates neighbouring elements; ``transposed`` are the roles of
    matrices whose axes it has swapped; with ``norms_plus_one`` it has added 1 to the weights of norms; with
    ``qkv_apart`` it has put the queries of all heads before the keys and these before the values, where the source has
    all three of one key/value head before those of the next, in the tensor of role qkv_proj. With ``optional_bias`` the
    config has an ``attention_bias``, perhaps an ``mlp_bias``, which a GGUF file shows only by its tensors. Families
    that share an architecture are told apart by ``has_experts``, by ``gating``, the number of the router's scoring
    function (1, softmax, if a file has none), or by the key ``marker``, which only one of them has. ``bare`` are roles
    whose tensors have no .weight in the source. ``by_head`` are roles of matrices that llama.cpp splits into two
    tensors: the first rows of each head, with axes swapped, and the other rows of each head. ``end_tokens`` end texts
    although files do not list them.

    Of recurrent layers: ``without_suffix`` are roles whose tensors have no .weight in the file; ``decays`` are roles of
    logarithms a that llama.cpp stores as -exp(a); ``squeezed`` are roles of convolutions [channels, 1, width] that it
    stores as [channels, width], or with more axes of 1; ``kinds`` is the key of metadata that says of which kind each
    layer is; ``forms`` are the shapes of roles to which it gives other axes,
    with -1 for the one that is not 1; ``flags`` are keys of the config that a file shows only by having a tensor, and
    that tensor's name; ``plain_norms`` are those to which it has not added 1. ``tiled_heads`` are roles of
    tensors whose value heads it has reordered, and the axis of these heads (:mod:`trtllm_lite.convert.gguf.tiles`).

    ``drafting_layers`` is the key of the config that counts the layers which come after the others and draft (MTP);
    their tensors get the names of the family's ``predictor``. ``listed`` maps keys of metadata, which have a number for
    each layer, to roles whose tensors have one number and no .weight in the source. ``stacked`` are roles of matrices,
    outside layers, of which the file has so many in one tensor; ``rows`` are keys of the config that a file shows only
    by how many rows a tensor has, and that tensor's name; ``absent`` are flags of the config that are true if a layer
    has the first of two tensors without the second.
    """

    architecture: str
    roles: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    config: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    interleaved_rope: bool = False
    transposed: tuple[str, ...] = ()
    norms_plus_one: bool = False
    qkv_apart: bool = False
    optional_bias: bool = False
    has_experts: bool = False
    gating: int | None = None
    marker: str = ""
    bare: tuple[str, ...] = ()
    by_head: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    end_tokens: tuple[str, ...] = ()
    without_suffix: tuple[str, ...] = ()
    decays: tuple[str, ...] = ()
    squeezed: tuple[str, ...] = ()
    forms: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    kinds: str = ""
    plain_norms: tuple[str, ...] = ()
    tiled_heads: Mapping[str, int] = field(default_factory=dict)
    drafting_layers: str = ""
    listed: Mapping[str, str] = field(default_factory=dict)
    stacked: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def architectures(self) -> tuple[str, ...]:
        """Every general.architecture of the family's files."""
        return (self.architecture, *self.also)


@dataclass(frozen=True)
class Multimodal:
    """Tells how multimodal models, which also take images, hold the family's text model.

    ``architectures`` are their class names, which several families may share. In their config.json ``text_config`` has
    the model's keys, and its model_type, which is the family's or one of ``model_types``; if it is one of
    ``flat_types``, there may be no ``text_config``, and the keys stand beside those of other parts. Published files
    leave out keys with the values in ``defaults``, which transformers fills in from
    the text model's config class. ``other_keys`` are keys beside ``text_config`` that concern other parts.
    """

    architectures: tuple[str, ...]
    defaults: Mapping[str, Any]
    other_keys: tuple[str, ...]
    model_types: tuple[str, ...] = ()
    flat_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """One model family, declared in one file.

    ``architectures`` are Hugging Face class names. ``read_model`` composes the model that a config.json describes;
    every key that it does not read is an error unless the key is known not to matter. ``tensor_names`` are the source's
    names by role (:mod:`trtllm_lite.convert.sources.source_tensors`); ``ignored_tensors`` are regular expressions for
    names of tensors that carry no information. If all names of a source lack ``optional_prefix``, as in models saved
    without the LM head, the prefix is added. ``model_type`` is the model_type of config.json where that is not
    ``name``. A family that ``drafts`` consists of draft heads for models of other families, whose model_type they have.
    ``predictor`` is the family of the models' own drafting layer (MTP), if they have one; ``drafting_layers`` is the
    key of config.json that counts such layers if they come last and are left out. ``multimodal`` models are read as
    text alone. ``layouts`` maps keys that ``read_model`` reads and no config.json has to patterns: such a key is true
    if the name of a tensor of the source fits its pattern, and its shape the test beside the pattern, if there is one,
    which is also given the config.
    """

    name: str
    architectures: tuple[str, ...]
    read_model: Callable[[ConfigFields], Model]
    tensor_names: Mapping[str, str] = field(default_factory=lambda: TENSOR_NAMES)
    ignored_tensors: tuple[str, ...] = ROTARY_BUFFERS
    optional_prefix: str = ""
    model_type: str = ""
    drafts: bool = False
    predictor: "Family | None" = None
    drafting_layers: str = ""
    layouts: Mapping[str, str | tuple[str, ShapeTest]] = field(default_factory=dict)
    gguf: Gguf | None = None
    multimodal: Multimodal | None = None

    @property
    def all_architectures(self) -> tuple[str, ...]:
        """Class names of the family's models, and of multimodal models with such a text model."""
        return (*self.architectures, *(self.multimodal.architectures if self.multimodal else ()))

    def config_of(self, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
        """The ``config`` of a source, with what its ``tensors`` say about their layout."""
        shown = {}
        for key, layout in self.layouts.items():
            pattern, fits = layout if isinstance(layout, tuple) else (layout, lambda *_: True)
            found = (info.shape for name, info in tensors.items() if re.fullmatch(pattern, name))
            shown[key] = any(fits(config, shape) for shape in found)
        return {**config, **shown}

    def ignores(self, tensor: str) -> bool:
        """Whether ``tensor`` may be dropped."""
        return any(re.fullmatch(pattern, tensor) for pattern in self.ignored_tensors)


@cache
def all_families() -> dict[str, Family]:
    """Families by name: the ``FAMILY`` of every module in ``families/`` and of every entry point of the group."""
    package = importlib.import_module("trtllm_lite.convert.families")
    found = [
        (f"{package.__name__}.{module.name}", importlib.import_module(f"{package.__name__}.{module.name}").FAMILY)
        for module in pkgutil.iter_modules(package.__path__)
    ]
    found += [(entry.value, entry.load()) for entry in entry_points(group=ENTRY_POINT_GROUP)]
    families: dict[str, Family] = {}
    for origin, family in found:
        if not isinstance(family, Family):
            raise ConvertError(f"expected the entry point {origin} to be a Family, found {type(family).__name__}")
        if families.get(family.name) is family:
            continue  # registered twice, as with two editable installs of one package
        taken = {name for other in families.values() for name in (other.name, *other.architectures)}
        if taken & {family.name, *family.architectures}:
            raise ConvertError(
                f"{origin} registers the family {family.name!r} for {', '.join(family.architectures)}, "
                "which another family already has: uninstall one of the packages"
            )
        families[family.name] = family
    return families


def find_family(architectures: list[str]) -> Family | None:
    """The family of the first known architecture."""
    for family in all_families().values():
        if set(architectures) & set(family.architectures):
            return family
    return None


def find_model_type(model_type: str) -> Family | None:
    """The family whose configs have this ``model_type``."""
    return {family.model_type or family.name: family for family in all_families().values() if not family.drafts}.get(
        model_type
    )


def architectures_of(config: Mapping[str, Any], description: str) -> list[str]:
    """Class names: ``architectures`` of a config, or if it has none, the class of its ``model_type``.

    Raises ConvertError if it has neither; ``description`` names the model in the message.
    """
    architectures, model_type = config.get("architectures"), config.get("model_type")
    if not architectures and isinstance(model_type, str):
        family = find_model_type(model_type)
        return [model_type] if family is None else [family.architectures[0]]
    if not isinstance(architectures, list) or not architectures or not all(isinstance(a, str) for a in architectures):
        raise ConvertError(
            f"expected 'architectures' in the config of {description} to name a class, found {shown(architectures)}"
        )
    return architectures


def nearest_by_name(architecture: str) -> list[str]:
    """The three architectures that are spelled most like ``architecture``, the nearest first."""
    names = dict.fromkeys(name for family in all_families().values() for name in family.all_architectures)
    return difflib.get_close_matches(architecture, names, n=3, cutoff=0.0)
