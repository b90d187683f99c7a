"""/v1/embeddings."""

import base64
import time
from functools import partial

from trtllm_lite.common.vocabulary import TEXT_ENCODER
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.app import Application
from trtllm_lite.serve.bodies import read
from trtllm_lite.serve.bodies.embedding import EmbeddingBody
from trtllm_lite.serve.endpoints.texts import answer_texts, usage
from trtllm_lite.serve.events import encode_json
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.served_encoder import Rows


async def embeddings(app: Application, request: Request) -> Response:
    """Embed one or several texts."""
    body = await read(request.body, app.decoder(request, EmbeddingBody))
    model = app.encoder(request, body.model, TEXT_ENCODER)
    size = model.embedder.size
    if body.dimensions not in (None, size):
        message = f"dimensions is {body.dimensions}, and the model makes embeddings of {size} numbers: leave it out"
        raise ApiError(400, message, param="dimensions", code="invalid_value")
    return await answer_texts(request, body, model, partial(_response, request, body))


def _response(request: Request, body: EmbeddingBody, rows: Rows) -> Response:
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
        "usage": usage(request),
    }
    return Response(200, b'%b,"data":[%b]}' % (encode_json(content)[:-1], b",".join(data)))


def _as_numbers(row: Rows) -> list[float]:
    numbers: list[float] = row.tolist()
    return numbers


def _as_base64(row: Rows) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
