"""Makes request bodies: the JSON of completions, chat completions and embeddings, for prompts of random tokens."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtllm_lite.bench.http_client.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, ENDPOINTS
from trtllm_lite.bench.workload import PlannedRequest
from trtllm_lite.errors import ArgumentError, shown

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class Asking:
    """The form of requests: ``endpoint`` is one of ENDPOINTS; ``ignore_eos`` asks for outputs of exact lengths.

    Requests ask for the likeliest tokens (temperature 0). Raises ArgumentError for another endpoint, and for embeddings
    as a stream or of exact lengths.
    """

    model: str
    endpoint: str = COMPLETIONS
    stream: bool = True
    ignore_eos: bool = True

    def __post_init__(self) -> None:
        if self.endpoint not in ENDPOINTS:
            raise ArgumentError(f"endpoint is {shown(self.endpoint)}: expected one of {', '.join(ENDPOINTS)}")
        if self.endpoint == EMBEDDINGS and (self.stream or self.ignore_eos):
            raise ArgumentError("stream or ignore_eos is set, and an embedding has no tokens: leave them out")

    def body(self, request: PlannedRequest, decode: Decode | None) -> bytes:
        """The JSON of one request, its prompt as token ids, or as the text that ``decode`` makes of them."""
        ids = request.prompt_ids.tolist()
        prompt = ids if decode is None else decode(ids)
        fields = self._embedding(prompt) if self.endpoint == EMBEDDINGS else self._generation(request, prompt)
        if request.priority:
            fields["priority"] = request.priority
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")

    def _embedding(self, prompt: list[int] | str) -> dict[str, Any]:
        return {"model": self.model, "input": prompt, "encoding_format": "base64"}

    def _generation(self, request: PlannedRequest, prompt: list[int] | str) -> dict[str, Any]:
        asked = {"messages": [{"role": "user", "content": prompt}]} if self.endpoint == CHAT else {"prompt": prompt}
        fields: dict[str, Any] = {
            "model": self.model,
            **asked,
            "max_tokens": request.output_len,
            "temperature": 0.0,
            "stream": self.stream,
        }
        if self.stream:
            fields["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            fields |= {"ignore_eos": True, "min_tokens": request.output_len}
        return fields
