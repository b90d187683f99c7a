"""What endpoints for texts have in common: each text gets a row of numbers."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import TrtllmLiteError
from trtllm_lite.runtime.session.embedding_handle import EmbeddingHandle
from trtllm_lite.runtime.session.prompts import is_token_ids, parse_prompts
from trtllm_lite.serve.app import error_about
from trtllm_lite.serve.bodies.embedding import TextsBody
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.served_encoder import Rows, ServedEncoder
from trtllm_lite.serve.turns import MAX_QUICK_BYTES

_MAX_QUICK_ELEMENTS = 1 << 12
"""How many elements of rows are written as JSON within a millisecond."""


async def answer_texts(
    request: Request, body: TextsBody, model: ServedEncoder, write: Callable[[Rows], Response]
) -> Response:
    """What ``write`` makes of the rows of the body's texts, by then counted as the request's prompt tokens."""
    inputs = [body.input] if isinstance(body.input, str) or is_token_ids(body.input) else body.input
    body.PROMPTS.check_count(len(inputs))
    with model.admission(len(inputs)):
        is_quick = len(request.body) <= MAX_QUICK_BYTES
        try:
            texts, handle = await model.prepare(partial(_start, model, inputs, body), is_quick=is_quick)
        except TrtllmLiteError as error:
            failure = error_about(error, {"prompt": "input"})
            failure.param = failure.param or "input"
            raise failure from error
        rows = await model.embedded(handle)
        request.num_prompt_tokens = sum(map(len, texts))
        return await model.prepare(partial(write, rows), is_quick=rows.size <= _MAX_QUICK_ELEMENTS)


def usage(request: Request) -> dict[str, int]:
    """The usage of a request that generates nothing."""
    return {"prompt_tokens": request.num_prompt_tokens, "total_tokens": request.num_prompt_tokens}


def _start(
    model: ServedEncoder, inputs: Sequence[object], body: TextsBody
) -> tuple[list[NDArray[np.int32]], EmbeddingHandle]:
    """Tokenize the texts, which may be slow, and submit them."""
    parsed = parse_prompts(
        *(inputs, None, model.tokenizer, model.vocab_size, model.max_input_len),
        add_special_tokens=body.add_special_tokens,
    )
    return parsed.token_ids, model.start(parsed.token_ids, body.priority, body.timeout)
