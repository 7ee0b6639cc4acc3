"""The endpoints that generate, and the list of models."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
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
from loadmaster.serving.http.prompts import chat_prompt, completion_prompts
from loadmaster.serving.http.requests import ChatRequest, CompletionRequest
from loadmaster.serving.http.settings import ServerSettings
from loadmaster.serving.http.shapes import Shape
from loadmaster.serving.http.stream import EventStream, stream_events
from loadmaster.serving.http.whole import collect
from loadmaster.serving.types import ServingEngine

COMPLETION_TOKENS = 16
"""`max_tokens` of a completion that does not say. Source: the OpenAI API; a chat's answer may fill the context."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that requests may name. `created` is when this server began, in seconds since 1970."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "loadmaster"
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The response of `/v1/models`."""

    object: str = "list"
    data: list[ModelCard]


class Endpoints:
    """The endpoints over one engine."""

    def __init__(self, engine: ServingEngine, settings: ServerSettings, started: int) -> None:
        self._engine = engine
        self._settings = settings
        self._started = started

    async def models(self, _: Request) -> Response:
        """Answer `GET /v1/models`."""
        return _json(ModelList(data=[self._card(name) for name in self._settings.models]))

    async def model(self, request: Request) -> Response:
        """Answer `GET /v1/models/NAME`."""
        return _json(self._card(self._known(request.path_params["name"])))

    async def completions(self, request: Request) -> Response:
        """Answer `POST /v1/completions`."""
        asked = decode(await read_body(request, self._settings), CompletionRequest)
        self._known(asked.model)
        if asked.echo and asked.logprobs is not None:
            raise bad_request("'echo' with 'logprobs' is not supported", "echo", "unsupported_parameter")
        params = sampling(asked, self._settings.defaults, asked.logprobs)
        prompts = await completion_prompts(asked, self._engine.tokenizer)
        limits = self._limits(COMPLETION_TOKENS)
        job = make_job(asked, prompts, params, kind="cmpl", max_tokens=asked.max_tokens, limits=limits)
        return await self._answer(request, job, CompletionShape(echo=asked.echo), stream=asked.stream)

    async def chat(self, request: Request) -> Response:
        """Answer `POST /v1/chat/completions`."""
        asked = decode(await read_body(request, self._settings), ChatRequest)
        self._known(asked.model)
        if asked.top_logprobs is not None and not asked.logprobs:
            raise bad_request("'top_logprobs' needs 'logprobs': true", "top_logprobs", "invalid_value")
        params = sampling(asked, self._settings.defaults, (asked.top_logprobs or 0) if asked.logprobs else None)
        prompts = [await chat_prompt(asked.messages, self._engine.tokenizer)]
        length = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        job = make_job(asked, prompts, params, kind="chatcmpl", max_tokens=length, limits=self._limits(None))
        return await self._answer(request, job, ChatShape(), stream=asked.stream)

    async def _answer(self, request: Request, job: Job, shape: Shape, *, stream: bool) -> Response:
        if stream:
            return EventStream(stream_events(self._engine, job, shape), self._settings.send_seconds)
        answers = await unless_gone(request.receive, collect(self._engine, job))
        return _json(shape.whole(job, answers, count_usage(job, answers)))

    def _limits(self, default_tokens: int | None) -> Limits:
        return Limits(self._engine.max_model_len, self._settings.max_choices, default_tokens)

    def _card(self, name: str) -> ModelCard:
        return ModelCard(id=name, created=self._started, max_model_len=self._engine.max_model_len)

    def _known(self, name: str) -> str:
        """Return `name`. Raises ApiError 404 for a model that is not served here."""
        if name not in self._settings.models:
            message = f"the model {name!r} does not exist here; {_either(self._settings.models)}"
            raise bad_request(message, "model", "model_not_found", status=404)
        return name


def _either(names: Sequence[str]) -> str:
    return f"this server has {', '.join(map(repr, names))}"


def _json(record: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(record), media_type="application/json")
