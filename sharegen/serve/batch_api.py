"""`/v1/files` and `/v1/batches`, as OpenAI has them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from sharegen.serve.asked import values_of
from sharegen.serve.batch_runner import BatchRunner
from sharegen.serve.bodies import Bodies
from sharegen.serve.faults import Refusal
from sharegen.serve.file_store import FileStore
from sharegen.serve.limits import Limits
from sharegen.serve.uploads import Uploads
from sharegen.workload.request_body import Refused, refused

_Label = Annotated[str, Field(max_length=64)]
_Words = Annotated[str, Field(max_length=512)]


class _Asked(BaseModel):
    """The body that asks for a batch."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    completion_window: Literal["24h"]
    metadata: Annotated[dict[_Label, _Words], Field(max_length=16)] | None = None


PATHS = ("/v1/files", "/v1/files/{rest:path}", "/v1/batches", "/v1/batches/{rest:path}")

NOT_SERVED = Refusal(
    404,
    "this server keeps no files: start it with --batch-folder FOLDER to ask it batches",
    code="batches_not_served",
)


class BatchApi:
    """The endpoints of files and batches."""

    def __init__(
        self, store: FileStore, runner: BatchRunner, bodies: Bodies, limits: Limits
    ) -> None:
        self._store, self._runner, self._bodies = store, runner, bodies
        self._uploads = Uploads(store, limits)

    @property
    def routes(self) -> list[BaseRoute]:
        """What the server answers besides."""
        return [
            Route("/v1/files", self._upload, methods=["POST"]),
            Route("/v1/files", self._list_files),
            Route("/v1/files/{id}", self._file),
            Route("/v1/files/{id}", self._delete, methods=["DELETE"]),
            Route("/v1/files/{id}/content", self._content),
            Route("/v1/batches", self._create, methods=["POST"]),
            Route("/v1/batches", self._list_batches),
            Route("/v1/batches/{id}", self._batch),
            Route("/v1/batches/{id}/cancel", self._cancel, methods=["POST"]),
        ]

    async def _upload(self, request: Request) -> Response:
        try:
            return JSONResponse((await self._uploads.take(request)).model_dump())
        except OSError as error:
            raise _full(error) from None

    async def _list_files(self, request: Request) -> Response:
        purpose = request.query_params.get("purpose")
        found = [each for each in self._store.all() if purpose in (None, each.purpose)]
        page, more = _page(found, request, 10_000)
        return _listed([each.model_dump() for each in page], more)

    async def _file(self, request: Request) -> Response:
        return JSONResponse(self._store.find(request.path_params["id"]).model_dump())

    async def _delete(self, request: Request) -> Response:
        name = self._store.find(request.path_params["id"]).id
        self._runner.refuse_delete(name)
        try:
            self._store.delete(name)
        except OSError as error:
            raise _full(error) from None
        return JSONResponse({"id": name, "object": "file", "deleted": True})

    async def _content(self, request: Request) -> Response:
        file = self._store.find(request.path_params["id"])
        path = self._store.path_of(file.id)
        if not path.is_file():
            raise Refusal(404, f"the content of {file.id} is gone from the server's folder", "id")
        return FileResponse(path, media_type="application/jsonl", filename=file.filename)

    async def _create(self, request: Request) -> Response:
        async with self._bodies.of(request) as body:
            asked = _asked(body)
        file = self._store.find(asked.input_file_id)
        if file.purpose != "batch":
            raise Refusal(400, f"{file.id} holds answers, no requests", "input_file_id")
        await asyncio.to_thread(self._store.refuse_more)
        try:
            batch = await self._runner.create(**asked.model_dump())
        except OSError as error:
            raise _full(error) from None
        return JSONResponse(batch.shown())

    async def _list_batches(self, request: Request) -> Response:
        page, more = _page(self._runner.all(), request, 100)
        return _listed([each.shown() for each in page], more)

    async def _batch(self, request: Request) -> Response:
        return JSONResponse(self._runner.find(request.path_params["id"]).shown())

    async def _cancel(self, request: Request) -> Response:
        try:
            return JSONResponse((await self._runner.cancel(request.path_params["id"])).shown())
        except OSError as error:
            raise _full(error) from None


def _asked(body: bytes) -> _Asked:
    """What asks for a batch. Raises Refusal."""
    try:
        values = values_of(body)
    except Refused as error:
        raise Refusal(400, str(error), code=error.fault.code) from None
    given = {name: value for name, value in values.items() if value is not None}
    if "output_expires_after" in given:
        raise Refusal(
            400,
            "output_expires_after: files are kept until they are deleted",
            "output_expires_after",
            "unsupported_parameter",
        )
    try:
        return _Asked.model_validate(given)
    except ValidationError as error:
        fault = refused(error, _Asked).fault
        raise Refusal(400, fault.message, fault.param, fault.code) from None


def _page(found: Sequence[Any], request: Request, most: int) -> tuple[Sequence[Any], bool]:
    """The part of a list that a query asks for, and whether there is more. Raises Refusal."""
    query = request.query_params
    order, after, limit = query.get("order", "desc"), query.get("after"), query.get("limit")
    if order not in ("asc", "desc"):
        raise Refusal(400, f"order is {order!r:.80}: it may be asc or desc", "order")
    if limit is not None and not (limit.isdecimal() and 1 <= int(limit[:9]) <= most):
        raise Refusal(400, f"limit is {limit!r:.80}: it may be 1 to {most:,}", "limit")
    if order == "asc":
        found = found[::-1]
    if after is not None:
        place = next((at for at, each in enumerate(found) if each.id == after), None)
        if place is None:
            raise Refusal(404, f"there is no {after!r:.80} in this list", "after")
        found = found[place + 1 :]
    count = int(limit) if limit is not None else min(most, 20 if most == 100 else most)
    return found[:count], len(found) > count


def _listed(data: list[dict[str, Any]], more: bool) -> Response:
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    none = dict.fromkeys(("first_id", "last_id"))
    body = {"object": "list", "data": data, **none, **ends, "has_more": more}
    return Response(json.dumps(body), media_type="application/json")


def _full(error: OSError) -> Refusal:
    return Refusal(507, f"the server cannot keep it: {error.strerror}", code="storage_full")
