"""Defines the interface of a source (Hugging Face directory, GGUF file) to the conversion."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from trtllm_lite.convert.metadata.generation_config import GENERATION_CONFIG
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.sources.image_settings import ImageSettings
from trtllm_lite.convert.sources.safetensors_file import TensorInfo
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.blocks import PARTS, Blocks, part_name
from trtllm_lite.network.context import CacheRounding
from trtllm_lite.network.pooling import Pooling

StoredNames = Callable[[str], tuple[str, ...]]


def _same_name(name: str) -> tuple[str, ...]:
    return (name,)


def _no_image_settings() -> ImageSettings:
    raise ConvertError("a GGUF file does not say how images are preprocessed: convert the Hugging Face directory")


@dataclass(frozen=True)
class Embeddings:
    """Facts from an encoder's files beside its config: the pooling of a text, and the longest text in tokens.

    ``max_seq_length`` is None if texts may have as many tokens as the encoder has positions. ``prompt`` comes before
    every text.
    """

    pooling: Pooling = field(default_factory=Pooling)
    max_seq_length: int | None = None
    prompt: str = ""


@dataclass(frozen=True)
class Source:
    """An opened model.

    ``description`` names the source in messages. ``config`` and ``generation`` have the keys of Hugging Face's
    config.json and generation_config.json; ``tensors`` maps Hugging Face's names to shapes and best storage types.
    ``read`` returns a tensor in whatever floating type the source has. ``tokenizer`` is the text of tokenizer.json,
    None if the model has no tokenizer; ``tokenizer_config`` holds chat templates and token strings. ``blocks`` are
    the matrices whose parts ``read`` also returns, by the names of :func:`blocks.part_name`. ``cache`` is how layers
    round keys and values, by the number of the layer, empty if they do not. ``stored_names`` gives the names that the
    source's file has, or should have, for a tensor, for messages. ``embeddings`` reads the facts about encoders;
    ``embeds`` is true if the files are those of an embedding model. ``quantization`` describes, for people, how a
    quantized model's layers are stored. ``is_text_part`` is true if other parts of the model were left out, with which
    the model is ``whole``; ``image_settings`` reads how its images are preprocessed.
    ``ignored_config_keys`` are the keys that were left unread at the user's request. ``kinds_key`` is what the source
    calls the key that says of which kind each layer is, if it differs from the config's.
    """

    description: str
    config: dict[str, Any]
    generation: dict[str, Any]
    tensors: dict[str, TensorInfo]
    read: Callable[[str], NDArray]
    tokenizer: str | None
    tokenizer_config: dict[str, Any]
    ignored_config_keys: tuple[str, ...] = ()
    blocks: Mapping[str, Blocks] = field(default_factory=dict)
    stored_names: StoredNames = _same_name
    embeddings: Callable[[], Embeddings] = Embeddings
    embeds: bool = False
    cache: Mapping[int, CacheRounding] = field(default_factory=dict)
    quantization: str = ""
    is_text_part: bool = False
    whole: "Source | None" = None
    image_settings: Callable[[], ImageSettings] = _no_image_settings
    kinds_key: str = ""

    def with_prefix(self, prefix: str, but: str) -> "Source":
        """The source with ``prefix`` before the names of all tensors but ``but``, unless a name has it already."""
        if not prefix or any(name.startswith(prefix) for name in self.tensors):
            return self
        return self.renamed(
            {name if name.rpartition(".")[0] == but else f"{prefix}{name}": name for name in self.tensors}
        )

    def renamed(self, names: Mapping[str, str]) -> "Source":
        """Return the source with only the tensors of ``names``, which maps new names to old ones."""
        tensors = {name: self.tensors[old] for name, old in names.items()}
        blocks = {name: self.blocks[old] for name, old in names.items() if old in self.blocks}
        parts = {part_name(name, part): part_name(names[name], part) for name in blocks for part in PARTS}
        stored = {**names, **parts}
        return replace(self, tensors=tensors, blocks=blocks, read=lambda name: self.read(stored[name]))


def without_config_keys(source: Source, ignored: IgnoredKeys) -> Source:
    """``source`` without these keys in its config and generation defaults. ConvertError for a key that no file has."""
    config = ignored.without(source.config)
    generation = ignored.without(ignored.without(source.generation), GENERATION_CONFIG.name)
    ignored.check(source.description)
    return replace(source, config=config, generation=generation, ignored_config_keys=ignored.keys)
