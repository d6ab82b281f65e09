"""What a server says of its model and of itself: `/v1/models`, `/health`, `/metrics`."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from sharegen.serve.api import Api, json_answer
from sharegen.serve.engine_loop import EngineLoop
from sharegen.serve.faults import Refusal
from sharegen.serve.metrics import as_text


class AboutApi:
    """The endpoints beside completions that every server has.

    names: of the model, the first its own; context: the most tokens of prompt and output.
    """

    def __init__(self, names: tuple[str, ...], context: int, loop: EngineLoop, api: Api) -> None:
        self._names, self._context, self._loop, self._api = names, context, loop, api
        self._created = int(time.time())

    @property
    def routes(self) -> list[BaseRoute]:
        """What the server answers besides."""
        return [
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
        ]

    async def _models(self, request: Request) -> Response:
        return json_answer({"object": "list", "data": [self._card(name) for name in self._names]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._names:
            raise Refusal(404, f"there is no model {name!r:.80} here", "model", "model_not_found")
        return json_answer(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        card = {"id": name, "object": "model", "created": self._created, "owned_by": "sharegen"}
        return {**card, "max_model_len": self._context}

    async def _health(self, request: Request) -> Response:
        is_well = not (self._api.ends or self._loop.ends)
        return json_answer({"status": "ok" if is_well else "ending"}, 200 if is_well else 503)

    async def _metrics(self, request: Request) -> Response:
        engines = self._loop.engines
        text = as_text(engines.stats, engines.num_ready, self._api.counts)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")
