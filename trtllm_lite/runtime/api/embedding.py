"""Computes embeddings of texts, for ``LLM.embed``."""

from collections.abc import Sequence

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.session.embedder import Embedder
from trtllm_lite.runtime.session.prompts import Prompt, is_token_ids, parse_prompts
from trtllm_lite.runtime.session.session import Session


def embedder_of(model: Session | Embedder) -> Embedder:
    """``model``, which has to be an encoder. Raises ArgumentError for a decoder."""
    if isinstance(model, Embedder):
        return model
    raise ArgumentError(
        "this engine is a decoder's, which generates text (generate) and embeds none: convert an encoder, such as a "
        "BertModel"
    )


def embed_prompts(model: Embedder, prompts: Prompt | Sequence[Prompt]) -> list[float] | list[list[float]]:
    """Implements ``LLM.embed``."""
    batch = [prompts] if is_token_ids(prompts) else prompts
    vocab_size, max_input_len = model.manifest.model.vocab_size, model.limits.max_input_len
    parsed = parse_prompts(batch, None, model.tokenizer, vocab_size, max_input_len)
    rows: list[list[float]] = model.embed(parsed.token_ids).tolist()
    return rows[0] if parsed.single or is_token_ids(prompts) else rows
