"""The endpoints that generate."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from loadmaster.serving.http.answers import count_usage
from loadmaster.serving.http.bodies import read_body
from loadmaster.serving.http.chat_shape import ChatShape
from loadmaster.serving.http.completion_shape import CompletionShape
from loadmaster.serving.http.disconnect import unless_gone
from loadmaster.serving.http.errors import bad_request
from loadmaster.serving.http.fields import decode
from loadmaster.serving.http.jobs import Job, Limits, make_job, sampling
from loadmaster.serving.http.models import Models
from loadmaster.serving.http.prompts import chat_prompt, completion_prompts
from loadmaster.serving.http.replies import json_reply
from loadmaster.serving.http.requests import ChatRequest, CompletionRequest
from loadmaster.serving.http.settings import ServerSettings
from loadmaster.serving.http.shapes import Shape
from loadmaster.serving.http.stream import EventStream, stream_events
from loadmaster.serving.http.whole import collect
from loadmaster.serving.types import ServingEngine

COMPLETION_TOKENS = 16
"""`max_tokens` of a completion that does not say. Source: the OpenAI API; a chat's answer may fill the context."""


class Endpoints:
    """The endpoints over one engine."""

    def __init__(self, engine: ServingEngine, settings: ServerSettings, models: Models) -> None:
        self._engine = engine
        self._settings = settings
        self._models = models

    async def completions(self, request: Request) -> Response:
        """Answer `POST /v1/completions`."""
        asked = decode(await read_body(request, self._settings), CompletionRequest)
        adapter = self._models.adapter_of(asked.model)
        if asked.echo and asked.logprobs is not None:
            message = "'echo' with 'logprobs' is not supported: the log-probabilities of a prompt are not computed"
            raise bad_request(message, "echo", "unsupported_parameter")
        params = sampling(asked, self._settings.defaults, asked.logprobs)
        prompts = await completion_prompts(asked, self._engine.tokenizer)
        limits = self._limits(COMPLETION_TOKENS)
        job = make_job(asked, prompts, params, adapter=adapter, kind="cmpl", max_tokens=asked.max_tokens, limits=limits)
        return await self._answer(request, job, CompletionShape(echo=asked.echo), stream=asked.stream)

    async def chat(self, request: Request) -> Response:
        """Answer `POST /v1/chat/completions`."""
        asked = decode(await read_body(request, self._settings), ChatRequest)
        adapter = self._models.adapter_of(asked.model)
        if asked.top_logprobs is not None and not asked.logprobs:
            raise bad_request("'top_logprobs' needs 'logprobs': true", "top_logprobs", "invalid_value")
        params = sampling(asked, self._settings.defaults, (asked.top_logprobs or 0) if asked.logprobs else None)
        prompts = [await chat_prompt(asked.messages, self._engine.tokenizer)]
        length = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        limits = self._limits(None)
        job = make_job(asked, prompts, params, adapter=adapter, kind="chatcmpl", max_tokens=length, limits=limits)
        return await self._answer(request, job, ChatShape(), stream=asked.stream)

    async def _answer(self, request: Request, job: Job, shape: Shape, *, stream: bool) -> Response:
        if stream:
            return EventStream(stream_events(self._engine, job, shape), self._settings.send_seconds)
        answers = await unless_gone(request.receive, collect(self._engine, job))
        return json_reply(shape.whole(job, answers, count_usage(job, answers)))

    def _limits(self, default_tokens: int | None) -> Limits:
        return Limits(self._engine.max_model_len, self._settings.max_choices, default_tokens)
