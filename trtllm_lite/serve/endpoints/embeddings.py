"""/v1/embeddings."""

import base64
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import TrtllmLiteError
from trtllm_lite.runtime.session.embedding_handle import EmbeddingHandle
from trtllm_lite.runtime.session.prompts import is_token_ids, parse_prompts
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.app import Application, error_about
from trtllm_lite.serve.bodies import read
from trtllm_lite.serve.bodies.embedding import EmbeddingBody
from trtllm_lite.serve.events import encode_json
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.served_encoder import Rows, ServedEncoder
from trtllm_lite.serve.turns import MAX_QUICK_BYTES

_MAX_QUICK_ELEMENTS = 1 << 12
"""How many elements of embeddings are written as JSON within a millisecond."""


async def embeddings(app: Application, request: Request) -> Response:
    """Embed one or several texts."""
    body = await read(request.body, app.decoder(request, EmbeddingBody))
    model = app.encoder(request, body.model)
    inputs = [body.input] if isinstance(body.input, str) or is_token_ids(body.input) else body.input
    size = model.embedder.size
    _check(body, len(inputs), size)
    with model.admission(len(inputs)):
        is_quick = len(request.body) <= MAX_QUICK_BYTES
        try:
            texts, handle = await model.prepare(partial(_start, model, inputs, body), is_quick=is_quick)
        except TrtllmLiteError as error:
            failure = error_about(error, {"prompt": "input"})
            failure.param = failure.param or "input"
            raise failure from error
        rows = await model.embedded(handle)
        write = partial(_response, request, body, texts, rows)
        return await model.prepare(write, is_quick=len(rows) * size <= _MAX_QUICK_ELEMENTS)


def _check(body: EmbeddingBody, num_inputs: int, size: int) -> None:
    """Raise ApiError 400 for invalid fields."""
    EmbeddingBody.PROMPTS.check_count(num_inputs)
    if body.dimensions not in (None, size):
        message = f"dimensions is {body.dimensions}, and the model makes embeddings of {size} numbers: leave it out"
        raise ApiError(400, message, param="dimensions", code="invalid_value")


def _start(
    model: ServedEncoder, inputs: list[Any], body: EmbeddingBody
) -> tuple[list[NDArray[np.int32]], EmbeddingHandle]:
    """Tokenize the texts, which may be slow, and submit them."""
    parsed = parse_prompts(
        *(inputs, None, model.tokenizer, model.vocab_size, model.max_input_len),
        add_special_tokens=body.add_special_tokens,
    )
    return parsed.token_ids, model.start(parsed.token_ids, body.priority, body.timeout)


def _response(request: Request, body: EmbeddingBody, texts: Sequence[NDArray[np.int32]], rows: Rows) -> Response:
    request.num_prompt_tokens = sum(map(len, texts))
    write = _as_base64 if body.encoding_format == "base64" else _as_numbers
    # Each embedding is written on its own: writing all at once would hold the interpreter's lock for long.
    data = [
        encode_json({"object": "embedding", "index": number, "embedding": write(row)})
        for number, row in enumerate(rows)
    ]
    content = {
        "id": f"embd-{request.id}",
        "object": "list",
        "created": int(time.time()),
        "model": request.model,
        "usage": {"prompt_tokens": request.num_prompt_tokens, "total_tokens": request.num_prompt_tokens},
    }
    return Response(200, b'%b,"data":[%b]}' % (encode_json(content)[:-1], b",".join(data)))


def _as_numbers(row: Rows) -> list[float]:
    numbers: list[float] = row.tolist()
    return numbers


def _as_base64(row: Rows) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
