"""/classify, as vLLM has it."""

import time
from functools import partial

from trtllm_lite.common.vocabulary import TEXT_CLASSIFIER
from trtllm_lite.runtime.api.classification import classification_outputs
from trtllm_lite.serve.app import Application
from trtllm_lite.serve.bodies import read
from trtllm_lite.serve.bodies.embedding import TextsBody
from trtllm_lite.serve.endpoints.texts import answer_texts, usage
from trtllm_lite.serve.events import encode_json
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.served_encoder import Rows, ServedEncoder


async def classify(app: Application, request: Request) -> Response:
    """Classify one or several texts."""
    body = await read(request.body, app.decoder(request, TextsBody))
    model = app.encoder(request, body.model, TEXT_CLASSIFIER)
    return await answer_texts(request, body, model, partial(_response, request, model))


def _response(request: Request, model: ServedEncoder, rows: Rows) -> Response:
    data = [
        {"index": number, "label": output.label, "probs": output.probs, "num_classes": len(output.probs)}
        for number, output in enumerate(classification_outputs(model.embedder, rows))
    ]
    content = {
        "id": f"classify-{request.id}",
        "object": "list",
        "created": int(time.time()),
        "model": request.model,
        "data": data,
        "usage": usage(request),
    }
    return Response(200, encode_json(content))
