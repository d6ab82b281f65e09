"""Several engines as one: the driver deals requests to workers and passes on what they finish.

Draws never depend on the batch, so any dealing draws the same samples. That the very bits stay too,
on a CPU in float32, takes one thing more: a worker must split its prompts where the tree of all of
them does, so every request carries the places where its path is split.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from typing import Any

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.config import EngineStats
from sharegen.engine.parallel.deal import Dealer
from sharegen.engine.parallel.launch import Processes
from sharegen.engine.parallel.messages import (
    Begin,
    Check,
    Checked,
    End,
    Failed,
    Finished,
    Ready,
    Setting,
    Warned,
    Work,
)
from sharegen.engine.parallel.workplace import Worker, Workplace
from sharegen.engine.request import Completion, Request
from sharegen.errors import SharegenError, UsageError

_AHEAD = 2  # times its rows: samples that a worker holds, running ones included
_PREFILL = 0.05  # of a drawn token's work is that of a prompt token


class WorkersError(SharegenError):
    """No worker is left."""


@dataclass
class _Item:
    """A request, or some samples of one, as it is dealt: what is left of it."""

    request: Request
    left: set[int]


class Driver:
    """Workers under one roof, with an engine's `check`, `generate`, `stats` and `close`.

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
        self._workers: dict[Worker, None] = {}  # in the order in which they were hired
        self._ready: dict[Worker, Ready] = {}
        self._counts: dict[Worker, EngineStats] = {}
        self._warned: set[str] = set()
        self._checked: Checked | None = None
        self._error: SharegenError | None = None
        self._job = self._seed = 0
        self._held: dict[Worker, int] = {}  # samples dealt and not finished
        self._read_below = 0.0  # undealt work with which the next requests are read
        self._dealer = Dealer()
        self._items: dict[int, _Item] = {}
        self._by_key: dict[int, list[int]] = {}
        self._done: deque[Completion] = deque()
        self._busy = False
        try:
            for setting in settings:
                self.hire(setting)
            while not self._ready:
                self._listen()
        except BaseException:
            self.close()
            raise
        self.ready = next(iter(self._ready.values()))

    def hire(self, setting: Setting) -> None:
        """One more worker, which joins when it is ready."""
        self._workers[self._workplace.start(setting)] = None

    @property
    def slots(self) -> int:
        """Samples that all workers decode together."""
        return sum(ready.slots for ready in self._ready.values())

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        """End the workers; whatever they have not finished is dropped."""
        for worker in self._workers:
            self._workplace.end(worker)
        self._workers.clear()
        self._ready.clear()

    # -- requests -----------------------------------------------------------------------------

    def check(self, *requests: Request) -> None:
        """Raise what Engine.check does for requests that can never run."""
        for error in self.errors(requests):
            if error is not None:
                raise error

    def errors(self, requests: Sequence[Request]) -> Sequence[SharegenError | None]:
        """For each request what Engine.check raises, or None."""
        while True:
            worker = next(iter(self._ready), None) or self._nobody()
            self._checked = None
            if not self._send(worker, Check(requests)):
                continue
            while self._checked is None and worker in self._ready:
                self._listen()
            if self._checked is not None:
                return self._checked.errors

    def generate(
        self, requests: Iterable[Request], *, seed: int | None = None
    ) -> Iterator[Completion]:
        """As Engine.generate: completions in any order; closing it early drops the rest."""
        if self._busy:
            raise UsageError("an engine does one job at a time: finish or close the first one")
        source = iter(requests)
        self._busy, self._job = True, self._job + 1
        self._seed = self._config.seed if seed is None else seed
        self._dealer = Dealer()
        for worker in list(self._ready):
            self._join(worker)
        try:
            more = self._read(source)
            while True:
                while more and self._dealer.undealt <= self._read_below:
                    more = self._read(source)
                self._deal()
                while self._done:
                    yield self._done.popleft()
                if not self._dealer.unfinished and not more:
                    return
                self._listen()
        finally:
            self._busy = False
            self._items.clear()
            self._by_key.clear()
            self._done.clear()
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
        items, work = self._items_of(requests)
        for number, item in zip(self._dealer.extend(work), items, strict=True):
            self._items[number] = item
            self._by_key.setdefault(item.request.key, []).append(number)
        self._read_below = sum(work) / 2
        return True

    def _items_of(self, requests: Sequence[Request]) -> tuple[list[_Item], list[float]]:
        """What is to be dealt of them, in the order of its tree, and the work of each.

        The samples of a request stay together unless there are fewer requests than workers.
        """
        tree = PrefixTree(self._config.block_size)
        told = [request.splits for request in requests if request.splits is not None]
        prompts = [request.prompt_token_ids for request in requests]
        leaves = tree.insert(prompts, splits=told or None)
        place = {node: i for i, node in enumerate(tree.nodes())}
        wanted = [i for i, request in enumerate(requests) if request.samples]
        wanted.sort(key=lambda i: place[leaves[i]])
        parts = -(-len(self._workers) // len(wanted)) if wanted else 1
        items, work = [], []
        for i in wanted:
            request, leaf = requests[i], leaves[i]
            for part in range(min(parts, len(request.samples))):
                samples = request.samples[part::parts] if parts > 1 else request.samples
                items.append(_Item(replace(request, splits=leaf.splits()), set(samples)))
                work.append(leaf.length * _PREFILL + len(samples) * request.params.max_tokens)
        return items, work

    # -- dealing ------------------------------------------------------------------------------

    def _join(self, worker: Worker) -> None:
        """A worker takes part in the job."""
        self._dealer.join(worker)
        self._held[worker] = 0
        self._send(worker, Begin(self._job, self._seed))

    def _deal(self) -> None:
        """Give everyone who runs low more to do."""
        for worker, ready in list(self._ready.items()):
            numbers: list[int] = []
            while self._held[worker] < _AHEAD * ready.slots and self._dealer.undealt > 0:
                fair = self._dealer.undealt / (2 * _AHEAD * len(self._ready))
                run = self._dealer.deal(worker, fair)
                if not run:
                    break
                for number in run:
                    self._held[worker] += len(self._items[number].left)
                numbers += run
            if numbers:
                self._send(worker, Work([self._left_of(n) for n in numbers]))

    def _left_of(self, number: int) -> Request:
        item = self._items[number]
        if len(item.left) == len(item.request.samples):
            return item.request
        return replace(item.request, samples=sorted(item.left))

    # -- listening ----------------------------------------------------------------------------

    def _listen(self) -> None:
        """Wait until some workers say something, and hear them."""
        if not self._workers:
            self._nobody()
        for worker, message in self._workplace.listen():
            if message is None:
                self._lose(worker, worker.why())
            else:
                self._hear(worker, message)

    def _hear(self, worker: Worker, message: object) -> None:
        match message:
            case Ready():
                if any(known.fingerprint != message.fingerprint for known in self._ready.values()):
                    self._lose(worker, "its model is another one")
                    return
                self._ready[worker] = message
                self._counts[worker] = message.stats
                self._count()
                if self._busy:
                    self._join(worker)
            case Finished(job, completions, stats):
                self._counts[worker] = stats
                if job == self._job and self._busy:
                    self._done.extend(self._note(worker, done) for done in completions)
                self._count()
            case Checked():
                self._checked = message
            case Warned(text):
                if text not in self._warned:
                    self._warned.add(text)
                    warnings.warn(text, stacklevel=2)
            case Failed(error):
                self._error = error
                self._lose(worker, str(error))

    def _note(self, worker: Worker, completion: Completion) -> Completion:
        numbers = self._by_key[completion.request.key]
        number = next(n for n in numbers if completion.sample in self._items[n].left)
        item = self._items[number]
        item.left.remove(completion.sample)
        self._held[worker] -= 1
        if not item.left:
            self._dealer.finish(worker, number)
            numbers.remove(number)
            del self._items[number]
        return replace(completion, request=item.request)

    def _send(self, worker: Worker, message: object) -> bool:
        try:
            worker.send(message)
        except ConnectionError:
            self._lose(worker, worker.why())
            return False
        return True

    def _lose(self, worker: Worker, why: str) -> None:
        """A worker is gone: what it has not finished goes to the others."""
        if worker not in self._workers:
            return
        del self._workers[worker]
        self._workplace.end(worker)
        if self._ready.pop(worker, None) is not None and self._busy:
            self._dealer.leave(worker)
        if self._workers:
            warnings.warn(f"a worker is gone: {why}; the others go on", stacklevel=2)
        else:
            self._error = self._error or WorkersError(f"the last worker is gone: {why}")

    def _nobody(self) -> Any:
        raise self._error or WorkersError("no worker is left")

    def _count(self) -> None:
        """The workers' counts as one engine's; levels of the moment are of those that live."""
        asked = self.stats.prompt_tokens_asked
        total = EngineStats()
        for worker, stats in self._counts.items():
            for field in fields(EngineStats):
                mine, theirs = getattr(total, field.name), getattr(stats, field.name)
                if field.name in _OF_NOW and worker not in self._ready:
                    continue
                if isinstance(theirs, dict):
                    for name, count in theirs.items():
                        mine[name] = mine.get(name, 0) + count
                elif field.name in _OF_ONE:
                    setattr(total, field.name, max(mine, theirs))
                elif isinstance(theirs, (int, float)):
                    setattr(total, field.name, mine + theirs)
                else:
                    setattr(total, field.name, mine or theirs)
        for name, value in asdict(total).items():
            setattr(self.stats, name, value)
        self.stats.prompt_tokens_asked = asked


_OF_ONE = ("slots",)  # of an engine: steps are counted by engine, too
_OF_NOW = ("running", "waiting", "slots", "blocks_total", "blocks_used")
