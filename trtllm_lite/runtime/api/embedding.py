"""Computes embeddings of texts, for ``LLM.embed``."""

import math
from collections.abc import Sequence

from trtllm_lite.common.units import counted
from trtllm_lite.common.vocabulary import MODULE_USES, TEXT_CLASSIFIER, TEXT_ENCODER
from trtllm_lite.errors import ArgumentError
from trtllm_lite.pages import fact_table
from trtllm_lite.runtime.session.embedder import Embedder
from trtllm_lite.runtime.session.prompts import Prompt, is_token_ids, parse_prompts
from trtllm_lite.runtime.session.session import Session

_NUM_SHOWN = 4
_REMEDIES = {
    TEXT_ENCODER: "convert an encoder, such as a BertModel, and build it alone or as text_encoder in a decoder's "
    "engine directory",
    TEXT_CLASSIFIER: "convert a classifier, such as a BertForSequenceClassification",
}


class EmbeddingOutput(list[float]):
    """The embedding of a text: a list of numbers, of which ``repr`` shows only the first."""

    def __repr__(self) -> str:
        return f"<EmbeddingOutput of {counted(len(self), 'number')}: {self._shown()}>"

    def _repr_html_(self) -> str:
        """The figures of ``repr`` and the vector's length, for notebooks."""
        facts = {"numbers": len(self), "values": self._shown(), "length": math.hypot(*self)}
        return fact_table("EmbeddingOutput", facts)

    def _shown(self) -> str:
        return ", ".join([f"{value:.4g}" for value in self[:_NUM_SHOWN]] + ["…"] * (len(self) > _NUM_SHOWN))


def model_of(kind: str, model: Session | Embedder) -> Embedder:
    """``model``, whose module has to be of this ``kind``: one that embeds or classifies. ArgumentError for another."""
    module = model.manifest.module
    if isinstance(model, Embedder) and module.kind == kind:
        return model
    use, found, method = module.use, module.kind.replace("_", " "), MODULE_USES[kind].method
    raise ArgumentError(
        f"this engine was built from a {found}, which {use.doing} (LLM.{use.method}), and LLM.{method} is of another "
        f"kind of model: {_REMEDIES[kind]}"
    )


def embed_prompts(
    model: Embedder, prompts: Prompt | Sequence[Prompt], *, priority: int, timeout: float | None
) -> EmbeddingOutput | list[EmbeddingOutput]:
    """Implements ``LLM.embed``."""
    batch = [prompts] if is_token_ids(prompts) else prompts
    vocab_size, max_input_len = model.manifest.model.vocab_size, model.limits.max_input_len
    parsed = parse_prompts(batch, None, model.tokenizer, vocab_size, max_input_len)
    if any(embeds is not None for embeds in parsed.embeds):
        raise ArgumentError("prompt_embeds is given, and an encoder embeds texts and token ids: leave it out")
    embedded = model.embed(parsed.token_ids, priority=priority, timeout=timeout)
    rows = [EmbeddingOutput(row) for row in embedded.tolist()]
    return rows[0] if parsed.single or is_token_ids(prompts) else rows
