"""What every kind of source (Hugging Face directory, GGUF file) offers to the conversion."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from trtllm_lite.convert.safetensors_file import TensorInfo


@dataclass(frozen=True)
class Source:
    """An opened model.

    ``description`` is for messages. ``config`` and ``generation`` have the keys of Hugging Face's config.json and
    generation_config.json; ``tensors`` Hugging Face's names, and the type each is best stored as. ``read`` returns one
    tensor in whatever floating type the source has. ``tokenizer`` is the text of tokenizer.json, ``tokenizer_config``
    the chat template and the token strings.
    """

    description: str
    config: dict[str, Any]
    generation: dict[str, Any]
    tensors: dict[str, TensorInfo]
    read: Callable[[str], NDArray]
    tokenizer: str
    tokenizer_config: dict[str, Any]

    def with_prefix(self, prefix: str, but: str) -> "Source":
        """The source with ``prefix`` before every tensor's name if none has it; those called ``but`` keep theirs."""
        if not prefix or any(name.startswith(prefix) for name in self.tensors):
            return self
        stored = {name if name.rpartition(".")[0] == but else f"{prefix}{name}": name for name in self.tensors}
        tensors = {name: self.tensors[old] for name, old in stored.items()}
        return replace(self, tensors=tensors, read=lambda name: self.read(stored[name]))
