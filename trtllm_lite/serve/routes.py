"""Lists the endpoints by path."""

from collections.abc import Mapping, Sequence

from trtllm_lite.serve.bodies.chat import ChatBody
from trtllm_lite.serve.bodies.completion import CompletionBody
from trtllm_lite.serve.bodies.embedding import EmbeddingBody, TextsBody
from trtllm_lite.serve.bodies.messages import MessagesBody, PromptFields
from trtllm_lite.serve.bodies.responses import ResponsesBody
from trtllm_lite.serve.endpoints import about, adapters, metrics, tokens
from trtllm_lite.serve.endpoints.chat import chat_completions
from trtllm_lite.serve.endpoints.classify import classify
from trtllm_lite.serve.endpoints.completions import completions
from trtllm_lite.serve.endpoints.embeddings import embeddings
from trtllm_lite.serve.endpoints.messages import anthropic_error, count_tokens, messages
from trtllm_lite.serve.endpoints.responses import responses, stored_response
from trtllm_lite.serve.http.messages import HTML, TEXT
from trtllm_lite.serve.route import Route

ROUTES: Mapping[str, Sequence[Route]] = {
    "/": [Route("GET", about.page, answer=HTML, is_open=True)],
    "/v1/completions": [Route("POST", completions, CompletionBody, is_work=True)],
    "/v1/chat/completions": [Route("POST", chat_completions, ChatBody, is_work=True, has_one_prompt=True)],
    "/v1/responses": [Route("POST", responses, ResponsesBody, is_work=True, has_one_prompt=True)],
    "/v1/responses/": [Route(method, stored_response) for method in ("GET", "POST", "DELETE")],
    "/v1/messages": [
        Route("POST", messages, MessagesBody, is_work=True, has_one_prompt=True, error_body=anthropic_error)
    ],
    "/v1/messages/count_tokens": [
        Route("POST", count_tokens, PromptFields, has_one_prompt=True, error_body=anthropic_error)
    ],
    "/v1/embeddings": [Route("POST", embeddings, EmbeddingBody, is_work=True)],
    "/classify": [Route("POST", classify, TextsBody, is_work=True)],
    "/v1/models": [Route("GET", about.models)],
    "/v1/models/": [Route("GET", about.models)],
    "/v1/load_lora_adapter": [Route("POST", adapters.load_lora_adapter, adapters.LoadBody, TEXT, is_admin=True)],
    "/v1/unload_lora_adapter": [Route("POST", adapters.unload_lora_adapter, adapters.UnloadBody, TEXT, is_admin=True)],
    "/tokenize": [Route("POST", tokens.tokenize, tokens.TokenizeBody, has_one_prompt=True)],
    "/detokenize": [Route("POST", tokens.detokenize, tokens.DetokenizeBody, has_one_prompt=True)],
    "/health": [Route("GET", about.health, answer=TEXT, is_open=True)],
    "/ping": [
        Route("GET", about.health, answer=TEXT, is_open=True),
        Route("POST", about.health, answer=TEXT, is_open=True),
    ],
    "/ready": [Route("GET", about.ready, answer=TEXT, is_open=True)],
    "/readyz": [Route("GET", about.ready, answer=TEXT, is_open=True)],  # as Kubernetes' own servers call it
    "/livez": [Route("GET", about.live, answer=TEXT, is_open=True)],
    "/version": [Route("GET", about.version, is_open=True)],
    "/load": [Route("GET", about.load)],
    "/metrics": [Route("GET", metrics.metrics, answer=TEXT, is_open=True)],
    "/prometheus/metrics": [Route("GET", metrics.metrics, answer=TEXT, is_open=True)],  # TensorRT-LLM's path
    "/openapi.json": [Route("GET", about.openapi, is_open=True)],
    "/docs": [Route("GET", about.docs, answer=HTML, is_open=True)],
}
