"""The models that requests may name: the loaded one under its names, and its adapters under theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from loadmaster.serving.http.errors import ApiError, bad_request
from loadmaster.serving.http.replies import json_reply
from loadmaster.serving.types import AdapterInfo, ServingEngine

MOST_NAMES: Final = 20
"""Names that the refusal of an unknown model lists; `/v1/models` has them all."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that requests may name. `created` is when this server began, in seconds since 1970.

    `root` is the served model's first name, or the name of an adapter's folder: where files lie on the server's machine is not
    told. `parent` is the model that an adapter changes; the fields after `max_model_len` are an adapter's only.
    """

    id: str
    object: str = "model"
    created: int
    owned_by: str = "loadmaster"
    root: str
    parent: str | None = None
    max_model_len: int
    summary: str | UnsetType = UNSET
    digest: str | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The response of `/v1/models`."""

    object: str = "list"
    data: list[ModelCard]


class Models:
    """What `/v1/models` shows, and what the `model` of a request means."""

    def __init__(self, engine: ServingEngine, names: Sequence[str], started: int) -> None:
        self._engine = engine
        self._names = tuple(names)
        self._started = started

    async def all(self, _: Request) -> Response:
        """Answer `GET /v1/models`."""
        return json_reply(ModelList(data=self._cards()))

    async def one(self, request: Request) -> Response:
        """Answer `GET /v1/models/NAME`."""
        name, cards = request.path_params["name"], self._cards()
        for card in cards:
            if card.id == name:
                return json_reply(card)
        raise _unknown(name, [card.id for card in cards])

    def is_base(self, name: str) -> bool:
        """Return whether the loaded model itself is called so."""
        return name in self._names

    def adapter_of(self, name: str) -> str:
        """Return the adapter that a request for the model `name` wants, empty for none.

        Raises ApiError 404 that lists what there is.
        """
        if self.is_base(name):
            return ""
        adapters = [adapter.name for adapter in self._engine.adapters.list()]
        if name not in adapters:
            raise _unknown(name, [*self._names, *adapters])
        return name

    def _cards(self) -> list[ModelCard]:
        base = [
            ModelCard(id=name, created=self._started, root=self._names[0], max_model_len=self._engine.max_model_len)
            for name in self._names
        ]
        # An adapter that was merged has given the model its name: there is nothing to choose.
        adapters = [adapter for adapter in self._engine.adapters.list() if not self.is_base(adapter.name)]
        return base + [self._adapter_card(adapter) for adapter in adapters]

    def _adapter_card(self, adapter: AdapterInfo) -> ModelCard:
        return ModelCard(
            id=adapter.name,
            created=self._started,
            root=PurePath(adapter.path).name,
            parent=self._names[0],
            max_model_len=self._engine.max_model_len,
            summary=adapter.summary,
            digest=adapter.digest,
            bytes=adapter.nbytes,
            pinned=adapter.pinned,
        )


def _unknown(name: str, names: Sequence[str]) -> ApiError:
    """Return the refusal of a model that is none of `names`."""
    told = ", ".join(map(repr, names[:MOST_NAMES]))
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    message = f"the model {name!r} does not exist here; this server has {told}{more}"
    return bad_request(message, "model", "model_not_found", status=404)
