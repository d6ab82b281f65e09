"""Several engines as one: the driver deals requests to workers and passes on what they finish.

Draws never depend on the batch, so any dealing draws the same samples. That the very bits stay too,
on a CPU in float32, takes one thing more: a worker must split its prompts where the tree of all of
them does, so every request carries the places where its path is split.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from sharegen.common.at_exit import closed_at_exit
from sharegen.engine.cache.paths import Paths
from sharegen.engine.config import EngineStats
from sharegen.engine.core.lengths import Lengths
from sharegen.engine.core.request import Completion, Request
from sharegen.engine.parallel.assignment import Assignment
from sharegen.engine.parallel.counts import Counts
from sharegen.engine.parallel.hardest import hardest
from sharegen.engine.parallel.launch import Processes
from sharegen.engine.parallel.liveness import Liveness
from sharegen.engine.parallel.messages import (
    Begin,
    Cancel,
    Check,
    Checked,
    CompletionMessage,
    End,
    Failed,
    Finished,
    Forget,
    Ready,
    Require,
    Setting,
    Warned,
    Work,
    WorkersError,
)
from sharegen.engine.parallel.workplace import Worker, Workplace
from sharegen.errors import SharegenError, UsageError


class Driver:
    """Several workers that act as one engine: `check`, `generate`, `stats` and `close` are alike.

    settings: one for each worker. It stands when the first of them is ready; the others join the
    job as they become so. workplace: where they run; by default in processes of this machine.
    ready: what the first one said.

    Raises what making an engine raises where no worker can. Close it.
    """

    def __init__(
        self, settings: Sequence[Setting], workplace: Workplace[Any] | None = None
    ) -> None:
        self._config = settings[0].config
        self.stats = EngineStats()
        self._workplace: Workplace[Any] = Processes() if workplace is None else workplace
        self._workers: dict[Worker, int] = {}  # by number, in the order in which they were started
        self._num_started = 0
        self._ready: dict[Worker, Ready] = {}
        self._liveness: Liveness[Worker] = Liveness()
        self._counts = Counts(self.stats)
        self.slowest_start: dict[
            str, float
        ] = {}  # seconds by part, of the engine that took longest
        self._warned: set[str] = set()
        self._checked: Checked | None = None
        self._error: SharegenError | None = None
        self._job = self._seed = 0
        self._lengths = Lengths()  # of the job's samples, for workers that join late
        self._assignment: Assignment[Worker] = Assignment(self._config.block_size)
        self._done: deque[Completion] = deque()
        self._paths = Paths(self._config.block_size)
        self._busy = False
        try:
            for setting in settings:
                self.start_worker(setting)
            while not self._ready:
                self._listen()
        except BaseException:
            self.close()
            raise
        self.ready = next(iter(self._ready.values()))

    def start_worker(self, setting: Setting) -> None:
        """One more worker, which joins when it is ready."""
        worker = self._workplace.start(setting)
        self._num_started += 1
        self._workers[worker] = self._num_started

    @property
    def slots(self) -> int:
        """The number of samples that all workers decode together."""
        return sum(ready.slots for ready in self._ready.values())

    def gather(self) -> None:
        """Wait until all who were started are ready, or gone."""
        while len(self._ready) < len(self._workers):
            self._listen()

    def stop_workers(self, but: int) -> None:
        """End all workers but the first so many, between two jobs."""
        for worker in list(self._workers)[but:]:
            del self._workers[worker]
            self._ready.pop(worker, None)
            self._liveness.leave(worker)
            self._counts.leave(worker)
            self._workplace.end(worker)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        """End the workers; whatever they have not finished is dropped."""
        for worker in self._workers:
            self._workplace.end(worker)
        self._workers.clear()
        self._ready.clear()
        self._workplace.close()

    # -- requests -----------------------------------------------------------------------------

    def check(self, *requests: Request) -> None:
        """Raise what Engine.check does for requests that can never run."""
        for error in self.errors(requests):
            if error is not None:
                raise error

    def errors(self, requests: Sequence[Request]) -> Sequence[SharegenError | None]:
        """Return for each request what Engine.check raises, or None."""
        if not any(self._all_errors(hardest(requests))):
            return [None] * len(requests)
        return self._all_errors(requests)

    def _all_errors(self, requests: Sequence[Request]) -> Sequence[SharegenError | None]:
        some = self._config.lookahead  # at a time, so that no message is as long as a job
        starts = range(0, len(requests), some)
        return [error for at in starts for error in self._errors(requests[at : at + some])]

    def _errors(self, requests: Sequence[Request]) -> Sequence[SharegenError | None]:
        while True:
            while not self._ready:
                self._listen()
            worker = next(iter(self._ready))
            self._checked = None
            if not self._send(worker, Check(requests)):
                continue
            while self._checked is None and worker in self._ready:
                self._listen()
            if self._checked is not None:
                return self._checked.errors

    @closed_at_exit
    def generate(
        self,
        requests: Iterable[Request],
        *,
        seed: int | None = None,
        lengths: Lengths | None = None,
    ) -> Generator[Completion, None, None]:
        """Draw samples as Engine.generate does; closing the iterator early drops the rest."""
        if self._busy:
            raise UsageError("an engine does one job at a time: finish or close the first one")
        source = iter(requests)
        self._busy, self._job = True, self._job + 1
        self._seed = self._config.seed if seed is None else seed
        self._lengths = Lengths()
        if lengths is not None:
            self._lengths.learn(lengths)
        self._assignment = Assignment(self._config.block_size)
        for worker in list(self._ready):
            self._join(worker)
        try:
            more = self._read(source)
            while True:
                while more and self._assignment.is_low:
                    more = self._read(source)
                self._deal()
                while self._done:
                    yield self._done.popleft()
                if self._assignment.is_done and not more:
                    return
                self._listen()
        finally:
            self._busy = False
            self._assignment = Assignment(self._config.block_size)
            self._done.clear()
            self.stats.idle = []
            for worker in list(self._ready):
                self._send(worker, End())

    def _read(self, source: Iterator[Request]) -> bool:
        """Take the next requests in; whether there was one."""
        requests = list(islice(source, self._config.lookahead))
        if not requests:
            return False
        for request, error in zip(requests, self.errors(requests), strict=True):
            if request.samples and error is not None:
                raise error
            self.stats.prompt_tokens_asked += len(request.prompt_token_ids) * len(request.samples)
        if requests[0].splits is None:
            requests = self._paths.with_splits(requests)
        self._assignment.extend(requests, len(self._workers))
        return True

    def _join(self, worker: Worker) -> None:
        """A worker takes part in the job."""
        self._assignment.join(worker, self._ready[worker].slots)
        self._send(worker, Begin(self._job, self._seed, self._lengths))

    def _deal(self) -> None:
        """Give everyone who runs low more to do."""
        for worker, requests in self._assignment.deal(len(self._workers)):
            self._send(worker, Work(requests))
        busy = self._assignment.busy
        if self.stats.idle or len(busy) < len(self._workers):
            self.stats.idle = [n for worker, n in self._workers.items() if worker not in busy]

    def reset_prefix_cache(self) -> None:
        """Forget what prompts shared, as Engine.reset_prefix_cache does."""
        if self._busy:
            raise UsageError("a job runs: finish or close it first")
        self._paths = Paths(self._config.block_size)
        for worker in list(self._ready):
            self._send(worker, Forget())

    # -- samples that run ---------------------------------------------------------------------

    def cancel(self, key: int, samples: Collection[int] | None = None) -> list[int]:
        """Cancel as Engine.cancel does; what a worker has finished before it hears of it still
        comes.
        """
        self._need_job("there is nothing to cancel: no job runs")
        ended: list[int] = []
        for worker, gone in self._assignment.cancel(key, samples):
            ended += gone
            if worker is not None:
                self._send(worker, Cancel(key, gone))
        return ended

    def call(self, key: int, required: int) -> None:
        """Require samples, as Engine.call does."""
        self._need_job("there are no samples to call: no job runs")
        for worker in self._assignment.call(key, required):
            self._send(worker, Require(key, required))

    def _need_job(self, without: str) -> None:
        if not self._busy:
            raise UsageError(without)

    # -- listening ----------------------------------------------------------------------------

    def _listen(self) -> None:
        """Wait a little for what workers say, and hear them; who is silent too long is lost."""
        if not self._workers:
            raise self._error or WorkersError("no worker is left")
        began = time.monotonic()
        for worker, message in self._workplace.listen():
            if message is None:
                self._lose(worker, worker.why())
            elif worker in self._workers:
                self._liveness.heard(worker, message)
                self._hear(worker, message)
        placed = [worker for worker in self._workers if worker.pid]
        seconds = time.monotonic() - began
        for worker, why in self._liveness.listened(seconds, placed):
            self._lose(worker, why)
        loading = [worker for worker in placed if worker not in self._ready]
        for worker in self._liveness.newly_late(seconds, loading):
            if worker in self._workers:
                number = self._workers[worker]
                warnings.warn(f"worker {number} still loads its model: it lives", stacklevel=2)

    def _hear(self, worker: Worker, message: object) -> None:
        match message:
            case Ready():
                if any(known.fingerprint != message.fingerprint for known in self._ready.values()):
                    self._lose(worker, "its model is another one")
                    return
                self._ready[worker] = message
                if sum(message.start.values()) > sum(self.slowest_start.values()):
                    self.slowest_start = message.start
                self._counts.update(worker, message.stats)
                if self._busy:
                    self._join(worker)
            case Finished() as finished:
                self._counts.update(worker, finished.stats)
                if finished.job == self._job and self._busy:
                    self._take(worker, finished)
            case Checked():
                self._checked = message
            case Warned(text):
                if text not in self._warned:
                    self._warned.add(text)
                    warnings.warn(text, stacklevel=2)
            case Failed(error):
                self._lose(worker, str(error), error)

    def _take(self, worker: Worker, message: Finished) -> None:
        """Take what a worker has finished of the job that runs."""
        self._done += (self._assignment.finish(worker, one) for one in message.drawn)
        self._lengths.learn(Lengths.of(Counter(map(_ending, message.drawn))))

    def _send(self, worker: Worker, message: object) -> bool:
        try:
            worker.send(message)
        except ConnectionError:
            self._lose(worker, worker.why())
            return False
        return True

    def _lose(self, worker: Worker, why: str, error: SharegenError | None = None) -> None:
        """A worker is gone: what it has not finished goes to the others, if there are any."""
        if worker not in self._workers:
            return
        number = self._workers.pop(worker)
        self._liveness.leave(worker)
        self._workplace.end(worker)
        self._counts.leave(worker)
        if self._ready.pop(worker, None) is not None and self._busy:
            self._leave(worker, why)
        if self._workers:
            warnings.warn(f"worker {number} is gone: {why}; the others go on", stacklevel=2)
        else:
            self._error = error or WorkersError(f"the last worker is gone: {why}")

    def _leave(self, worker: Worker, why: str) -> None:
        """A worker that took part in the job is gone."""
        self._assignment.leave(worker)


def _ending(drawn: CompletionMessage) -> tuple[int, str]:
    return len(drawn.token_ids), drawn.finish_reason
