"""The bodies of /v1/embeddings and of /classify."""

from typing import Any, ClassVar, Literal

import msgspec

from trtllm_lite.serve.bodies.prompts import PromptField


class TextsBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of texts, the fields that /classify has. ``input``: a text, token ids, or a list of either.

    ``priority`` and ``timeout`` in seconds mean what they do for completions. ``user`` is accepted and ignored.
    """

    PROMPTS: ClassVar = PromptField("input", "texts", 2048)  # OpenAI's limit of texts
    input: str | list[Any]
    model: str = ""
    user: str | None = None
    add_special_tokens: bool = True
    priority: int = 0
    timeout: float | None = None


class EmbeddingBody(TextsBody, forbid_unknown_fields=True, kw_only=True):
    """A body of texts. ``dimensions``: the expected size of the embeddings, if given.

    ``encoding_format``: numbers, or base64 of float32, little-endian.
    """

    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
