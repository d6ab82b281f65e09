"""What a trainer asks of a server that samples for it: to hold, to go on, to take new weights.

`/pause`, `/resume` and `/is_paused` are vLLM's words, `/update_weights_from_disk` is SGLang's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from sharegen.errors import SharegenError
from sharegen.serve.api import Api, disconnected
from sharegen.serve.asked import values_of
from sharegen.serve.batch_runner import BatchRunner
from sharegen.serve.engine_loop import PAUSE_MODES, EngineLoop
from sharegen.serve.faults import Refusal
from sharegen.workload.request_body import Refused, refused


class _Asked(BaseModel):
    """The body that asks for other weights."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model_path: str


PATHS = ("/pause", "/resume", "/is_paused", "/update_weights_from_disk")

NOT_SERVED = Refusal(
    404,
    "this server is no trainer's: start it with --weights-folder FOLDER to pause it, and to change "
    "its weights",
    code="training_not_served",
)


class TrainingApi:
    """The endpoints for a trainer.

    folder: below which new weights may lie; change: called with the fingerprint of the model as it
    is from then on.
    """

    def __init__(
        self,
        folder: Path,
        loop: EngineLoop,
        api: Api,
        batches: BatchRunner | None,
        change: Callable[[str], None],
    ) -> None:
        self._folder = folder.resolve()
        self._loop, self._api, self._batches = loop, api, batches
        self._change = change

    @property
    def routes(self) -> list[BaseRoute]:
        """What the server answers besides."""
        return [
            Route("/pause", self._pause, methods=["POST"]),
            Route("/resume", self._resume, methods=["POST"]),
            Route("/is_paused", self._is_paused),
            Route("/update_weights_from_disk", self._update, methods=["POST"]),
        ]

    async def _pause(self, request: Request) -> Response:
        if self._api.ends:
            raise Refusal(503, "the server is ending")
        query = dict(request.query_params)
        mode = query.pop("mode", "keep")
        if query:
            name = next(iter(query))
            raise Refusal(400, f"unknown parameter {name!r:.80}: /pause has mode alone", name[:80])
        if mode not in PAUSE_MODES:
            raise Refusal(400, f"mode is {mode!r:.80}: it may be {', '.join(PAUSE_MODES)}", "mode")
        if mode == "abort":
            self._refuse_in_a_batch()
        await self._done(request, self._loop.pause(mode))
        return JSONResponse({"status": "paused"})

    async def _resume(self, request: Request) -> Response:
        await self._done(request, self._loop.resume())
        return JSONResponse({"status": "resumed"})

    async def _is_paused(self, request: Request) -> Response:
        return JSONResponse({"is_paused": self._loop.is_paused})

    async def _update(self, request: Request) -> Response:
        async with self._api.bodies.of(request) as body:
            folder = self._below(_asked(body).model_path)
        self._refuse_in_a_batch()
        try:
            fingerprint = await self._done(request, self._loop.change_weights(str(folder)))
        except SharegenError as error:
            raise Refusal(400, f"nothing has changed: {error}", "model_path") from None
        self._change(fingerprint)
        return JSONResponse({"success": True, "message": f"the weights are those of {folder.name}"})

    def _refuse_in_a_batch(self) -> None:
        unfinished = None if self._batches is None else self._batches.unfinished
        if unfinished is not None:
            raise Refusal(
                409, f"{unfinished} is not finished, and its answers are one model's: cancel it, "
                "or wait for it",
                code="batch_unfinished",
            )  # fmt: skip

    def _below(self, path: str) -> Path:
        """The folder that is asked for. Raises Refusal for one elsewhere, or with files there."""
        elsewhere = Refusal(
            403, f"model_path is {path!r:.80}: it must be a folder below that of --weights-folder, "
            "and its files, too",
            "model_path",
        )  # fmt: skip
        try:
            found = (self._folder / path).resolve(strict=True)
            files = [each.resolve() for each in found.iterdir()] if found.is_dir() else []
        except (OSError, ValueError, RuntimeError):
            raise elsewhere from None
        if found == self._folder or not files:
            raise elsewhere
        if not all(each.is_relative_to(self._folder) for each in (found, *files)):
            raise elsewhere
        return found

    async def _done(self, request: Request, order: Future[Any]) -> Any:
        """What comes of an order. One that waits for its time is dropped with its client."""
        gone = asyncio.ensure_future(disconnected(request))
        done = asyncio.wrap_future(order)
        try:
            await asyncio.wait((done, gone), return_when=asyncio.FIRST_COMPLETED)
            if not done.done() and order.cancel():
                raise ClientDisconnect
            return await done
        finally:
            gone.cancel()


def _asked(body: bytes) -> _Asked:
    """What asks for other weights. Raises Refusal."""
    try:
        return _Asked.model_validate(values_of(body))
    except ValidationError as error:
        fault = refused(error, _Asked).fault
    except Refused as error:
        fault = error.fault
    raise Refusal(400, fault.message, fault.param, fault.code)
