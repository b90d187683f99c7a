"""/v1/completions."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from trtllm_lite.errors import TrtllmLiteError
from trtllm_lite.runtime.api.generation import Generation
from trtllm_lite.runtime.api.request_output import CompletionOutput, RequestOutput, logprobs_of
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.prompts import is_token_ids, parse_prompts
from trtllm_lite.runtime.session.request import FinishReason
from trtllm_lite.runtime.session.request import Response as Step
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.serve.api_error import ApiError, api_error
from trtllm_lite.serve.app import Application, error_about
from trtllm_lite.serve.bodies import read
from trtllm_lite.serve.bodies.completion import DEFAULT_MAX_TOKENS, CompletionBody
from trtllm_lite.serve.events import DONE, EventWriter, encode_json, event
from trtllm_lite.serve.following import stream, until_ended
from trtllm_lite.serve.http.messages import Request, Response
from trtllm_lite.serve.logprobs import completion_logprobs, prompt_rows
from trtllm_lite.serve.reading import as_openai, finish_reason
from trtllm_lite.serve.served_model import Prompt, ServedModel
from trtllm_lite.serve.turns import MAX_QUICK_BYTES
from trtllm_lite.serve.usage import usage_of


async def completions(app: Application, request: Request) -> Response | None:
    """Continue one or several prompts."""
    body = await read(request.body, app.decoder(request, CompletionBody))
    model, adapter = app.served(request, body.model, body.request_id)
    num_prompts = _num_prompts(body.prompt)
    num_sequences = num_prompts * (body.best_of or body.n)
    is_quick = num_sequences == 1 and len(request.body) <= MAX_QUICK_BYTES and body.is_quick
    with model.admission(num_sequences):
        try:
            _, generations = await model.begin(partial(_prepare, model, adapter, body), is_quick=is_quick)
        except TrtllmLiteError as error:
            raise error_about(error, {"guided_decoding": body.grammar_field}) from error
        answer = _Answer(request, model, body, generations)
        return await (answer.stream() if body.stream else answer.whole())


def _num_prompts(prompt: str | list[Any]) -> int:
    count = 1 if isinstance(prompt, str) or is_token_ids(prompt) else len(prompt)
    CompletionBody.PROMPTS.check_count(count)
    return count


def _prepare(model: ServedModel, adapter: LoRARequest | None, body: CompletionBody) -> tuple[None, list[Prompt]]:
    """Tokenize and check the prompts, which may be slow."""
    session = model.session
    if body.use_beam_search and body.stream:
        raise _wrong(
            "stream", "stream: a beam search gives its texts at its end; leave out either stream or use_beam_search"
        )
    if body.prompt_logprobs is not None and body.stream:
        raise _wrong(
            "prompt_logprobs", "prompt_logprobs: streams have none; leave out either prompt_logprobs or stream"
        )
    if body.best_of is not None and body.best_of > body.n and body.stream:
        raise _wrong("best_of", "best_of chooses when all texts have ended: leave out either stream or best_of")
    if body.max_tokens == 0 and not (body.echo and not body.use_beam_search):
        raise _wrong("max_tokens", "max_tokens is 0, which only echoes a prompt: set echo, or ask for tokens")
    batch = [body.prompt] if isinstance(body.prompt, str) or is_token_ids(body.prompt) else body.prompt
    parsed = parse_prompts(
        *(batch, None, model.tokenizer, session.manifest.model.vocab_size, session.limits.max_input_len),
        add_special_tokens=body.add_special_tokens,
    )
    prompt_logprobs = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        prompt_logprobs = body.logprobs
    params = body.sampling_params(
        # A token is generated, and not reported, even for a prompt that is only echoed.
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens or 1,
        draws=bool(session.manifest.model.generation.get("do_sample")),
        best_of=body.best_of,
        logprobs=body.logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    texts: Sequence[str | None] = parsed.texts or [None] * len(parsed.token_ids)
    rows = zip(parsed.token_ids, texts, strict=True)
    return None, [model.prompt(ids, text, params, body, adapter) for ids, text in rows]


_NO_TOKEN = Step(None, "", FinishReason.LENGTH)


class _Answer:
    """The answer to one request, whole or as events. Choices are numbered across all prompts."""

    def __init__(
        self, request: Request, model: ServedModel, body: CompletionBody, generations: Sequence[Generation]
    ) -> None:
        self._request = request
        self._model = model
        self._body = body
        self._generations = generations
        self._only_echoes = body.max_tokens == 0
        self._id, self._created = f"cmpl-{request.id}", int(time.time())

    # The whole answer.

    async def whole(self) -> Response:
        """The response, when all choices have ended. Raises EngineError if a choice failed."""
        await until_ended(self._model, self._generations)
        if self._body.logprobs is None and self._body.prompt_logprobs is None:
            return self._response()
        return await self._model.prepare(self._response)

    def _response(self) -> Response:
        outputs = [generation.result() for generation in self._generations]
        choices = [
            self._choice(row * self._body.n + completion.index, output, completion)
            for row, output in enumerate(outputs)
            for completion in output.outputs
        ]
        usage = usage_of(self._request, self._generations, self._num_drawn(outputs))
        return Response(200, encode_json({**self._head, "choices": choices, "usage": usage}))

    def _num_drawn(self, outputs: Sequence[RequestOutput]) -> int:
        """The number of tokens of all sequences, of which only the best may be among the outputs."""
        if self._only_echoes:
            return 0
        if self._body.use_beam_search:  # beams that were dropped are not known
            return sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
        handles = [handle for generation in self._generations for handle in generation.handles]
        return sum(step.token_id is not None for handle in handles for step in handle.responses)

    def _choice(self, number: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        body = self._body
        if self._only_echoes:
            completion = replace(
                completion,
                text="",
                token_ids=[],
                logprobs=completion.logprobs and [],
                finish_reason="length",
                stop_reason=None,
            )
        echoed = self._prompt_text(output.prompt, output.prompt_token_ids) if body.echo else ""
        choice: dict[str, Any] = {
            "index": number,
            "text": echoed + completion.text,
            "logprobs": None,
            "finish_reason": completion.finish_reason and as_openai(completion.finish_reason),
            "stop_reason": completion.stop_reason,
        }
        if body.logprobs is not None and completion.logprobs is not None:
            rows: list[Any] = list(zip(completion.token_ids, completion.logprobs, strict=True))
            if body.echo and output.prompt_logprobs is not None:
                rows = [*zip(output.prompt_token_ids, output.prompt_logprobs, strict=True), *rows]
            choice["logprobs"] = self._logprobs(rows, 0)
        if body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_rows(output.prompt_logprobs)
        if body.return_token_ids:
            choice["token_ids"], choice["prompt_token_ids"] = completion.token_ids, output.prompt_token_ids
        return choice

    # A stream.

    async def stream(self) -> None:
        """Send events until all choices have ended."""
        count = sum(len(generation.handles) for generation in self._generations)
        self._writer = EventWriter(self._request)
        self._num_tokens, self._num_chars = [0] * count, [0] * count
        head = encode_json(self._head)[:-1]
        self._before = [b'data: %b,"choices":[{"index":%d,"text":' % (head, number) for number in range(count)]
        body = self._body
        self._is_plain = body.logprobs is None and not (body.return_token_ids or body.echo or body.usage_always)
        try:
            await stream(self._model, self._generations, self._take, self._request.connection)
        except Exception as error:
            if not self._writer.has_begun:
                raise
            self._writer.fail(api_error(error))
            return
        finally:
            self._usage()  # for the access log, even if the client has gone away
        last = event({**self._head, "choices": [], "usage": self._usage()}) if body.usage_at_end else b""
        self._writer.write(last + DONE)
        self._writer.end()

    def _take(self, number: int, steps: Sequence[Step], handle: RequestHandle) -> None:
        """Send the new part of a choice."""
        if self._only_echoes:
            if steps[-1].finish_reason is None:
                return
            steps = [_NO_TOKEN]
        first = self._num_tokens[number] == 0
        tokens = [step for step in steps if step.token_id is not None]
        self._num_tokens[number] += len(tokens)
        text = steps[0].text if len(steps) == 1 else "".join([step.text for step in steps])
        reason = steps[-1].finish_reason
        if self._is_plain and reason is None:
            if text:  # the path of nearly every token
                before = self._before[number]
                self._writer.write(b'%b%b,"logprobs":null,"finish_reason":null}]}\n\n' % (before, encode_json(text)))
            return
        extra = self._extra(number, tokens, first, handle)
        if self._body.echo and first:
            generation = self._generations[number // self._body.n]
            text = self._prompt_text(generation.prompt, handle.request.prompt_ids.tolist()) + text
        self._num_chars[number] += len(text)
        if reason is not None:
            extra["stop_reason"] = handle.stop_reason(steps[-1].token_id)
        extra["finish_reason"] = None if reason is None else finish_reason(reason)
        usage = b',"usage":' + encode_json(self._usage()) if self._body.usage_always else b""
        rest = encode_json(extra)[1:]
        self._writer.write(b"%b%b,%b]%b}\n\n" % (self._before[number], encode_json(text), rest, usage))

    def _extra(self, number: int, tokens: Sequence[Step], first: bool, handle: RequestHandle) -> dict[str, Any]:
        """The fields of a chunk besides its text."""
        extra: dict[str, Any] = {"logprobs": None}
        body = self._body
        if body.logprobs is not None:
            rows: list[Any] = [
                (token, logprobs_of(token, step.logprobs)) for step in tokens if (token := step.token_id) is not None
            ]
            if body.echo and first:
                prompt = handle.request.prompt_ids.tolist()
                known = [None, *map(logprobs_of, prompt[1:], handle.prompt_logprobs)]
                rows = [*zip(prompt, known, strict=True), *rows]
            extra["logprobs"] = self._logprobs(rows, self._num_chars[number])
        if body.return_token_ids:
            extra["token_ids"] = [step.token_id for step in tokens]
            if first:
                extra["prompt_token_ids"] = handle.request.prompt_ids.tolist()
        return extra

    # Whole answers and streams.

    @property
    def _head(self) -> dict[str, Any]:
        return {"id": self._id, "object": "text_completion", "created": self._created, "model": self._request.model}

    def _usage(self) -> dict[str, Any]:
        return usage_of(self._request, self._generations, sum(self._num_tokens))

    def _prompt_text(self, text: str | None, ids: Sequence[int]) -> str:
        return self._model.required_tokenizer().decode(ids) if text is None else text

    def _logprobs(self, rows: Sequence[Any], offset: int) -> dict[str, Any]:
        as_ids = self._body.return_tokens_as_token_ids
        return completion_logprobs(rows, self._body.logprobs or 0, self._model.token_texts, offset, as_ids=as_ids)


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")
