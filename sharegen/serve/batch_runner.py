"""Batches are answered one after another, beside what clients ask themselves.

All of it runs on the event loop of the thread that listens; files are read and written in others.
What a batch has is on disk at every moment (`batch_output.py`), so a server that ends, however, is
gone on from by the next one of the same folder.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from sharegen.common.files import make_folders
from sharegen.engine.core.request import Request
from sharegen.errors import DataError, JournalError, UsageError
from sharegen.results.export.openai import failed, refused
from sharegen.serve.answers import ServedAnswer
from sharegen.serve.asked import ParsedRequest, Reader
from sharegen.serve.batch import Batch, BatchCounts, Fault, Status
from sharegen.serve.batch_output import BatchOutput
from sharegen.serve.engine_loop import EngineLoop
from sharegen.serve.faults import Refusal
from sharegen.serve.file_store import FileStore, read_description, write_description
from sharegen.serve.limits import Limits
from sharegen.serve.ticket import Ticket
from sharegen.workload.problem import random_key
from sharegen.workload.requests import BatchRequest

_AHEAD = 8
"""A part of the samples that decode together: no more of a batch wait for a row, so that another
client waits behind no more."""

_LOOK = 0.25  # seconds between two looks at how many wait; engines tell it about as often

Submit = Callable[[ParsedRequest, Sequence[Request]], tuple[ServedAnswer, Ticket]]
"""Sends requests to the engines."""


class BatchRunner:
    """The batches in the folder of a store.

    submit: sends what is asked to the engines. settings: what the answers of a batch that begins
    now depend on beside its file.
    """

    def __init__(
        self,
        store: FileStore,
        reader: Reader,
        loop: EngineLoop,
        submit: Submit,
        settings: Callable[[], str],
        limits: Limits,
    ) -> None:
        self._folder = store.folder / "batches"
        self._store, self._reader, self._loop = store, reader, loop
        self._submit, self._settings, self._limits = submit, settings, limits
        self._batches: dict[str, Batch] = {}
        self._run: _Run | None = None  # of the batch that is answered now
        self._ends = False
        self._changed = asyncio.Event()
        self._saving = asyncio.Lock()
        self._checks: set[asyncio.Task[None]] = set()
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="sharegen-read-batch")
        try:
            make_folders(self._folder)
        except OSError as error:
            raise UsageError(f"{self._folder}: cannot be made: {error.strerror}") from None
        found = (read_description(path, Batch) for path in self._folder.glob("batch_*.json"))
        for batch in sorted(found, key=lambda each: (each.created_at, each.id)):
            self._batches[batch.id] = batch

    # -- what clients ask -------------------------------------------------------------------------

    def all(self) -> list[Batch]:
        """Every batch, the newest first."""
        return [self.find(name) for name in reversed(self._batches)]

    def find(self, name: str) -> Batch:
        """The batch of an id, with its counts. Raises Refusal where there is none."""
        batch = self._batches.get(name)
        if batch is None:
            raise Refusal(404, f"there is no batch {name!r:.80} here", "id", "batch_not_found")
        if self._run is not None and self._run.name == name and not batch.is_over:
            return batch.model_copy(update={"request_counts": self._run.counts})
        return batch

    @property
    def unfinished(self) -> str | None:
        """The id of a batch that is not over, if there is one."""
        return next((name for name, each in self._batches.items() if not each.is_over), None)

    def refuse_delete(self, file: str) -> None:
        """Raise Refusal for a file that a batch still needs."""
        for batch in self._batches.values():
            if batch.input_file_id == file and not batch.is_over:
                raise Refusal(409, f"{batch.id} is made of this file: cancel it first")

    async def create(self, **asked: Any) -> Batch:
        """Take a batch on. Raises Refusal, and OSError."""
        most = self._limits.batches
        if sum(not batch.is_over for batch in self._batches.values()) >= most:
            raise Refusal(
                429,
                f"{most} batches are not finished (--max-batches): ask again later",
                code="too_many_batches",
            )
        batch = Batch(
            id=f"batch_{secrets.token_hex(12)}",
            created_at=int(time.time()),
            settings=self._settings(),
            **asked,
        )
        try:
            await self._save(batch)
        except BaseException:
            self._batches.pop(batch.id, None)
            raise
        self._check_soon(batch.id)
        return batch

    async def cancel(self, name: str) -> Batch:
        """Let a batch end with what it has. Raises Refusal for one that is over, and OSError."""
        batch = self.find(name)
        if batch.is_over:
            raise Refusal(409, f"{name} is {batch.status}: it cannot be cancelled", "id")
        if batch.status != "cancelling":
            await self._save(batch.become("cancelling"))
        if self._run is not None and self._run.name == name:
            self._run.stop()
        self._changed.set()
        return self.find(name)

    # -- how they are answered --------------------------------------------------------------------

    def end(self) -> None:
        """Begin nothing more; what runs has the server's grace."""
        self._ends = True
        self._changed.set()

    async def run(self) -> None:
        """Answer batches until it is told to end, and what had begun by then has ended."""
        for batch in list(self._batches.values()):
            if batch.status == "validating":
                self._check_soon(batch.id)
        while not self._ends:
            name = next(filter(self._may_run, self._batches), None)
            if name is None:
                self._changed.clear()
                await self._changed.wait()
            else:
                await self._guarded(name, self._answer(name))

    def _may_run(self, name: str) -> bool:
        batch = self._batches[name]
        return not batch.is_over and batch.status != "validating"

    def _check_soon(self, name: str) -> None:
        task = asyncio.ensure_future(self._guarded(name, self._check(name)))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(self, name: str) -> None:
        """Whether a batch can be answered is told at once, whatever runs."""
        requests = await self._requests(name)
        if requests is not None and self._batches[name].status == "validating":
            named = next((each.model for each in requests if each.model is not None), None)
            await self._become(
                name, "in_progress", model=named, request_counts=BatchCounts(total=len(requests))
            )
        self._changed.set()

    async def _requests(self, name: str) -> list[BatchRequest] | None:
        """The requests of a batch; one that has none that can be asked has failed."""
        batch = self._batches[name]
        try:
            file = self._store.find(batch.input_file_id)
            path = self._store.path_of(file.id)
            return await asyncio.to_thread(self._reader.batch, path, file.filename, batch.endpoint)
        except (DataError, Refusal) as error:
            await self._save(self._batches[name].fail([_fault(str(error))]))
            return None

    async def _answer(self, name: str) -> None:
        """Answer what a batch has no line of yet."""
        batch = self._batches[name]
        if batch.settings != self._settings():
            await self._save(batch.fail([_CHANGED]))
            return
        requests = await self._requests(name)
        if requests is None:
            return
        output = await asyncio.to_thread(BatchOutput, self._store, batch)
        self._run = run = _Run(name, output, len(requests), self._one, self._loop)
        try:
            left = [each for each in requests if each.custom_id not in output.done]
            if self._batches[name].status != "cancelling":
                error = await run.answer(left, lambda: self._ends)
            else:
                error = None
            is_cancelled = self._batches[name].status == "cancelling"
            if error is None and not is_cancelled and len(output.done) < len(requests):
                return  # the next server goes on
            if not is_cancelled and error is None:
                await self._become(name, "finalizing")
            published = await asyncio.to_thread(output.publish)
            changes = published | {"request_counts": run.counts}
            if error is not None:
                failure = self._batches[name].fail([_fault_of(error)])
                await self._save(failure.model_copy(update=changes))
            else:
                await self._become(name, "cancelled" if is_cancelled else "completed", **changes)
        finally:
            self._run = None
            output.close()

    async def _one(self, request: BatchRequest) -> dict[str, Any] | None:
        """The line of a request; None where the server ends before it has one."""
        name = request.custom_id
        reading = asyncio.get_running_loop().run_in_executor
        try:
            asked = await reading(self._reading, self._reader.line, request)
        except Refusal as error:
            return refused(name, str(error), error.param, error.code)
        prompts = zip(request.problem_ids, asked.prompts, strict=True)
        every = range(asked.params.n)
        requests = [
            Request(next(self._loop.keys), ids, asked.params, every, stream=random_key(problem))
            for problem, ids in prompts
        ]
        answer, ticket = self._submit(asked, requests)
        try:
            while not answer.is_whole:
                news = await ticket.news()
                if news.error is not None:
                    if self._loop.ends:
                        return None
                    return (failed if news.is_ours else refused)(name, news.error)
                answer.add(news.finished)
        finally:
            if not answer.is_whole:
                self._loop.cancel(ticket)
        return answer.line(name)

    async def _guarded(self, name: str, work: Awaitable[None]) -> None:
        """What goes wrong costs its batch alone."""
        try:
            await work
        except Exception as error:
            failure = self._batches[name].fail([_fault_of(error)])
            self._batches[name] = failure
            with suppress(OSError):
                await self._save(failure)

    async def _become(self, name: str, status: Status, **changes: Any) -> None:
        await self._save(self._batches[name].become(status, **changes))

    async def _save(self, batch: Batch) -> None:
        """Keep what has become of a batch. Raises OSError."""
        self._batches[batch.id] = batch
        async with self._saving:
            path = self._folder / f"{batch.id}.json"
            await asyncio.to_thread(write_description, path, self._batches[batch.id])


class _Run:
    """One batch that is answered now.

    one: makes the line of a request, or None where the server ends.
    """

    def __init__(
        self,
        name: str,
        output: BatchOutput,
        total: int,
        one: Callable[[BatchRequest], Awaitable[dict[str, Any] | None]],
        loop: EngineLoop,
    ) -> None:
        self.name = name
        self._output, self._total, self._one, self._loop = output, total, one, loop
        self._samples: dict[asyncio.Task[None], int] = {}  # of what is under way
        self._ahead = max(8, loop.engines.slots // _AHEAD)
        self._room = self._ahead  # samples that may be asked now
        self._freed = asyncio.Event()
        self._is_stopped = False
        self._error: BaseException | None = None

    @property
    def counts(self) -> BatchCounts:
        """How many requests have ended, and how."""
        return self._output.counts(self._total)

    def stop(self) -> None:
        """Let go of what is under way."""
        self._is_stopped = True
        for task in self._samples:
            task.cancel()
        self._freed.set()

    async def answer(
        self, requests: Sequence[BatchRequest], ends: Callable[[], bool]
    ) -> BaseException | None:
        """Ask them, some at a time, until all have a line or `ends` says so.

        Returns what kept lines from being written.
        """
        for request in requests:
            while self._samples and self._room <= 0 and not self._is_stopped:
                await self._wait()
            if self._is_stopped or ends() or self._loop.ends:
                break
            self._begin(request)
        while self._samples:
            await self._wait()
        return self._error

    async def _wait(self) -> None:
        """Until something has ended, or it is time to look at how many wait."""
        self._freed.clear()
        try:
            async with asyncio.timeout(_LOOK):
                await self._freed.wait()
        except TimeoutError:
            self._room = self._ahead - self._loop.engines.stats.waiting

    def _begin(self, request: BatchRequest) -> None:
        task = asyncio.ensure_future(self._line(request))
        self._samples[task] = samples = _samples_of(request)
        self._room -= samples
        task.add_done_callback(self._ended)

    async def _line(self, request: BatchRequest) -> None:
        line = await self._one(request)
        if line is not None and not self._is_stopped:
            self._output.write(line)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._room = min(self._ahead, self._room + self._samples.pop(task))
        self._freed.set()
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None:
            self._error = error
            self.stop()


def _samples_of(request: BatchRequest) -> int:
    """Samples that a request draws, at least 1."""
    n = request.body.get("n")
    return max(1, (n if isinstance(n, int) else 1) * len(request.problem_ids))


_CHANGED = Fault(
    code="model_changed",
    message="the server answers with another model, or other settings, than when the batch began: "
    "what it has so far stays in the server's folder; make a new batch",
)


def _fault(said: str) -> Fault:
    """What is wrong with a file, by its message: where, why, and a code at its end."""
    line = re.match(r"line (\d+): ", said)
    code = re.search(r"\((\w+)\)$", said)
    return Fault(
        message=said,
        line=int(line[1]) if line else None,
        code=code[1] if code else "invalid_file",
    )


def _fault_of(error: BaseException) -> Fault:
    """What ended a batch; a defect's place goes to stderr, without its words, which may be a
    prompt's."""
    if isinstance(error, (OSError, JournalError)):
        said = error.strerror if isinstance(error, OSError) else str(error)
        return Fault(code="storage", message=f"the server cannot keep the batch: {said}")
    place = "".join(traceback.format_tb(error.__traceback__))
    print(f"sharegen: {type(error).__name__} in a batch, at\n{place}", end="", file=sys.stderr)
    name = type(error).__name__
    return Fault(code="defect", message=f"the server has a defect: {name}; its stderr says where")
