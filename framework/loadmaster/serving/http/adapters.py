"""Loading and unloading adapters over HTTP: `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`.

Source of paths and of the fields `lora_name` and `lora_path`: https://docs.vllm.ai/en/latest/features/lora.html.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from loadmaster.serving.http.adapter_folder import find_adapter, without_folder
from loadmaster.serving.http.bodies import read_body
from loadmaster.serving.http.errors import ApiError, bad_request, from_loadmaster, sentence
from loadmaster.serving.http.fields import decode
from loadmaster.serving.http.models import Models
from loadmaster.serving.http.replies import json_reply
from loadmaster.serving.http.requests import LoadAdapterRequest, UnloadAdapterRequest
from loadmaster.serving.http.settings import ServerSettings
from loadmaster.serving.types import ServingEngine
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError, PlanError, UsageError

_STATUS: Final = ((UsageError, 400), (PlanError, 422), (IntegrityError, 422))
"""What a client can do something about; everything else has the status that it has elsewhere."""


class LoadedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a load. `bytes` is what the adapter takes over all ranks, `digest` that of its files' contents."""

    id: str
    object: str = "adapter"
    kind: str
    summary: str
    digest: str
    bytes: int
    pinned: bool


class UnloadedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """The response to an unload. `bytes` were given back."""

    id: str
    object: str = "adapter.deleted"
    deleted: bool = True
    bytes: int


class AdapterEndpoints:
    """The endpoints over one engine. They are closed unless the server has a folder that adapters are loaded from."""

    def __init__(self, engine: ServingEngine, settings: ServerSettings, models: Models) -> None:
        self._engine = engine
        self._settings = settings
        self._models = models

    async def load(self, request: Request) -> Response:
        """Answer `POST /v1/load_lora_adapter`. A client that leaves does not stop the load."""
        folder = self._folder()
        asked = decode(await read_body(request, self._settings), LoadAdapterRequest)
        if self._models.is_base(asked.lora_name):
            message = f"{asked.lora_name!r} is what the model itself is called; choose another name"
            raise bad_request(message, "lora_name", "name_taken", status=409)
        path = await asyncio.to_thread(find_adapter, folder, asked.lora_path)
        try:
            info = await self._engine.adapters.load(asked.lora_name, path, pinned=asked.pinned)
        except LoadmasterError as error:
            raise _refused(error, folder) from error
        return json_reply(
            LoadedAdapter(
                id=info.name,
                kind=info.kind,
                summary=info.summary,
                digest=info.digest,
                bytes=info.nbytes,
                pinned=info.pinned,
            )
        )

    async def unload(self, request: Request) -> Response:
        """Answer `POST /v1/unload_lora_adapter`, after the requests that use the adapter have ended."""
        self._folder()
        asked = decode(await read_body(request, self._settings), UnloadAdapterRequest)
        return json_reply(UnloadedAdapter(id=asked.lora_name, bytes=await self._engine.adapters.unload(asked.lora_name)))

    def _folder(self) -> str:
        """Return the folder that adapters are loaded from. Raises ApiError 403 when there is none."""
        if not self._settings.adapter_folder:
            message = "adapters are not loaded or unloaded over HTTP here; 'loadmaster serve --adapter-folder DIR' allows it"
            raise bad_request(message, None, "adapters_not_enabled", status=403)
        return self._settings.adapter_folder


def _refused(error: LoadmasterError, folder: str) -> ApiError:
    """Return the response for an adapter that cannot be loaded."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return bad_request(without_folder(sentence(error.report), folder), None, error.code, status=status)
    return from_loadmaster(error)
