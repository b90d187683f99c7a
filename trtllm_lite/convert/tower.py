"""The declaration of a family of vision towers, the registry of these families, and the source of a model's tower."""

import importlib
import pkgutil
from dataclasses import dataclass, replace
from functools import cache

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.convert.sources.text_model import VISION_TENSORS
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.pixels import Normalization

# Keys that the config of a tower's source has beside those of ``vision_config``.
NORMALIZATION, TEXT_SIZE = "image_normalization", "text_hidden_size"


@dataclass(frozen=True)
class Tower:
    """One family of towers.

    ``beside`` are the class names of whole models. The config that ``family`` reads has the keys of ``vision_config``,
    those of the whole config among ``keys``, NORMALIZATION, which is a :class:`Normalization`, and TEXT_SIZE, the
    hidden size of the decoder. Names of tensors are those of the whole model, without ``model.``.
    """

    family: Family
    beside: tuple[str, ...]
    keys: tuple[str, ...] = ()


@cache
def all_towers() -> dict[str, Tower]:
    """Towers by the names of their families: the ``TOWER`` of every module in ``towers/``."""
    package = importlib.import_module("trtllm_lite.convert.towers")
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    towers = [importlib.import_module(f"{package.__name__}.{name}").TOWER for name in names]
    return {tower.family.name: tower for tower in towers}


def tower_of(source: Source) -> tuple[Tower, Source] | None:
    """The tower of the whole model that ``source`` is the text part of, with the tower's source; None if it has none.

    Raises ConvertError if the model's files do not say how its images are normalised.
    """
    whole = source.whole
    if whole is None:
        return None
    names = whole.config.get("architectures") or []
    found = next((tower for tower in all_towers().values() if set(tower.beside) & set(names)), None)
    if found is None:
        return None
    vision = whole.config.get("vision_config")
    if not isinstance(vision, dict):
        raise ConvertError(
            f"expected vision_config in the config of {whole.description} to be an object, found {shown(vision)}: "
            "download it again"
        )
    settings = whole.image_settings()
    around = {key: whole.config[key] for key in found.keys if key in whole.config}
    own = {NORMALIZATION: settings.normalization, TEXT_SIZE: source.config.get("hidden_size")}
    config = {**vision, **around, **own, "architectures": [found.family.name]}
    tensors = {_own_name(name): name for name in whole.tensors if VISION_TENSORS.fullmatch(name)}
    part = replace(whole, config=config, generation={}, tokenizer=None, tokenizer_config={})
    return found, part.renamed(tensors)


def _own_name(name: str) -> str:
    """The name without what only some releases of transformers write."""
    return name.removeprefix("model.").replace("vision_tower.vision_model.", "vision_tower.", 1)


def normalization_of(value: object) -> Normalization:
    """The value of NORMALIZATION in a tower's config."""
    assert isinstance(value, Normalization)
    return value
