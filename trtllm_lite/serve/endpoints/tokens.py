"""/tokenize and /detokenize, with vLLM's bodies."""

from functools import partial
from typing import Any

import msgspec

from trtllm_lite.runtime.session.prompts import MAX_PROMPT_IDS, check_chars
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.app import Application
from trtllm_lite.serve.bodies import read
from trtllm_lite.serve.bodies.chat import ChatBody, Tool
from trtllm_lite.serve.conversation import render
from trtllm_lite.serve.events import encode_json
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.served_engine import ServedEngine
from trtllm_lite.serve.served_model import ServedModel


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request to tokenize: ``prompt``, or ``messages`` that go through the chat template."""

    model: str = ""
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request to detokenize: the tokens of a text."""

    tokens: list[int]
    model: str = ""


async def tokenize(app: Application, request: Request) -> Response:
    """The tokens of a text, or of a conversation."""
    body = await read(request.body, app.decoder(request, TokenizeBody))
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "expected either prompt or messages", param="prompt", code="invalid_value")
    if body.prompt is None:
        generator, _ = app.served(request, body.model)
        return await generator.prepare(partial(_tokenize_messages, generator, body))
    model, _ = app.found(request, body.model)
    return await model.prepare(partial(_tokenize, model, body, body.prompt))


def _tokenize_messages(model: ServedModel, body: TokenizeBody) -> Response:
    model.required_tokenizer()
    fields = ("tools", "add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs")
    chosen = {name: getattr(body, name) for name in fields}
    return _tokenize(model, body, render(model, ChatBody(messages=body.messages or [], **chosen)))


def _tokenize(model: ServedEngine, body: TokenizeBody, text: str) -> Response:
    tokenizer = model.required_tokenizer()
    check_chars("the text", text, tokenizer, model.max_input_len)
    adds = body.prompt is not None if body.add_special_tokens is None else body.add_special_tokens
    tokens = tokenizer.encode(text, add_special_tokens=adds)
    content: dict[str, Any] = {"count": len(tokens), "max_model_len": model.max_model_len, "tokens": tokens}
    if body.return_token_strs:
        content["token_strs"] = [model.token_texts.name(token, as_ids=False) for token in tokens]
    return Response(200, encode_json(content))


async def detokenize(app: Application, request: Request) -> Response:
    """The text of tokens."""
    body = await read(request.body, app.decoder(request, DetokenizeBody))
    model, _ = app.found(request, body.model)
    return await model.prepare(partial(_detokenize, model, body.tokens))


def _detokenize(model: ServedEngine, tokens: list[int]) -> Response:
    vocab_size = model.vocab_size
    if len(tokens) > MAX_PROMPT_IDS:
        raise ApiError(
            400,
            f"tokens has {len(tokens)} entries, which exceeds {MAX_PROMPT_IDS}: send fewer",
            param="tokens",
            code="invalid_value",
        )
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise ApiError(400, f"tokens: expected token ids below {vocab_size}", param="tokens", code="invalid_value")
    return Response(200, encode_json({"prompt": model.required_tokenizer().decode_all(tokens)}))
