"""Which requests can never run, on this model and in this memory, and why, in one line."""

from __future__ import annotations

from typing import Any

from sharegen.engine.core.request import Request
from sharegen.engine.execute.runner import Runner
from sharegen.engine.grammar.grammars import Grammars
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.errors import CapacityError, RequestError


class Checks:
    """What is asked of every request before it joins a job."""

    def __init__(self, model: LoadedModel, tokenizer: Any | None, grammars: Grammars) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._grammars = grammars

    def error(
        self, request: Request, scheduler: Scheduler, runner: Runner
    ) -> RequestError | CapacityError | None:
        """Why it can never run, or None where it can."""
        try:
            self._check(request, scheduler, runner)
        except (RequestError, CapacityError) as error:
            error.request_key = request.key
            return error
        return None

    def _check(self, request: Request, scheduler: Scheduler, runner: Runner) -> None:
        params = request.params
        self._model.check_prompt(request.tokens, params.max_tokens, request.fills_context)
        if params.stop and self._tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and none is loaded")
        if request.rows > self._model.vocab_size:
            raise RequestError(
                f"beam_width is {request.rows}, but the model's vocabulary has "
                f"{self._model.vocab_size} tokens to begin a text with: follow fewer beams"
            )
        runner.state.check(params)
        self._grammars.check(request)
        scheduler.check(request)
