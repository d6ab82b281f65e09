"""Several engines behind one server: requests go to workers as they arrive, one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sharegen.engine.core.lengths import Lengths
from sharegen.engine.core.request import Completion, Request
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.launch import Processes
from sharegen.engine.parallel.messages import (
    Begin,
    Cancel,
    DropWeights,
    End,
    Finished,
    Growth,
    Hold,
    Obeyed,
    ReadWeights,
    Setting,
    TakeWeights,
    Work,
)
from sharegen.engine.parallel.routing import Routed, Routing
from sharegen.engine.parallel.workplace import Worker
from sharegen.errors import SharegenError, UsageError


@dataclass
class Happened:
    """What has become of requests. refused: why some can never run, lost: why others end without
    an answer though they could have, both by key."""

    finished: list[Completion] = field(default_factory=list)
    grown: list[Growth] = field(default_factory=list)
    refused: dict[int, SharegenError] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)


class Dispatcher(Driver):
    """Workers to which requests come by hand: `begin`, then `add` and `step` until `end`.

    What a worker that dies has not finished goes to the others, but for what a client has seen the
    beginning of; the last one's death is raised. Only `wake` may be called from other threads.
    """

    def __init__(self, settings: Sequence[Setting], workplace: Processes | None = None) -> None:
        self._processes = Processes() if workplace is None else workplace
        self._routing: Routing[Worker] = Routing(settings[0].config.block_size)
        self._happened = Happened()
        self._obeyed: dict[Worker, Obeyed] = {}
        super().__init__(settings, self._processes)

    @property
    def num_ready(self) -> int:
        """Workers that take requests now."""
        return len(self._ready)

    def begin(self, seed: int) -> None:
        """Requests may come; seed: of those that bring none."""
        if self._busy:
            raise UsageError("an engine does one job at a time: finish or close the first one")
        self._busy, self._job, self._seed = True, self._job + 1, seed
        for worker in list(self._ready):
            self._join(worker)

    def end(self) -> None:
        """Whatever is not finished is dropped."""
        self._busy = False
        self._routing = Routing(self._config.block_size)
        self._happened = Happened()
        for worker in list(self._ready):
            self._send(worker, End())

    def add(self, requests: Sequence[Request], streams: Collection[int] = ()) -> None:
        """Requests have come together. streams: keys of those whose tokens are told as they are
        drawn."""
        for request in requests:
            self.stats.prompt_tokens_asked += len(request.prompt_token_ids) * len(request.samples)
        self._route([self._routing.add(each, each.key in streams) for each in requests])

    def _route(self, routed: Iterable[Routed[Worker]]) -> None:
        found: dict[Worker, list[Routed[Worker]]] = {}
        for each in routed:
            worker = self._routing.route(each)
            if worker is not None:
                found.setdefault(worker, []).append(each)
        for worker, some in found.items():
            streams = {each.request.key for each in some if each.streams}
            self._send(worker, Work([each.rest() for each in some], streams))

    def hold(self, is_held: bool) -> None:
        """Let every engine begin no step, or go on."""
        self._say_to_all(Hold(is_held))

    def change_weights(self, folder: str) -> str:
        """Let all engines compute with the weights in a folder, or none, between two requests.

        Returns the model's new fingerprint. Raises ModelError, by what differs, where they do not
        fit; nothing has changed then.
        """
        assert self._busy and not self.has_work, "it is idle between begin and end"
        self.gather()
        said = self._say_to_all(ReadWeights(folder))
        error = next((each.error for each in said if each.error is not None), None)
        if error is not None:
            self._say_to_all(DropWeights())
            raise error
        self.end()
        said = self._say_to_all(TakeWeights())
        self.begin(self._seed)
        self.ready = replace(self.ready, fingerprint=said[0].fingerprint)
        return said[0].fingerprint

    def _say_to_all(self, message: object) -> list[Obeyed]:
        """Tell every engine, and wait until each has done it, or is gone.

        Raises what the last one died of.
        """
        self._obeyed = {}
        for worker in list(self._ready):
            self._send(worker, message)
        while not self._ready or not self._ready.keys() <= self._obeyed.keys():
            self._listen()
        return [self._obeyed[worker] for worker in self._ready]

    @property
    def has_work(self) -> bool:
        """Whether something has come that is not answered."""
        return bool(len(self._routing))

    def step(self) -> Happened:
        """Wait a little for what workers say, or for `wake`; what has happened since the last call.

        Raises what the last worker died of.
        """
        self._listen()
        found, self._happened = self._happened, Happened()
        return found

    def wake(self) -> None:
        """From any thread: let `step` wait no longer."""
        self._processes.wake()

    def cancel(self, key: int, samples: Collection[int] | None = None) -> list[int]:
        """Nobody waits for a request any more."""
        assert samples is None, "a request that arrived is cancelled as a whole"
        routed = self._routing.drop(key)
        if routed is None:
            return []
        gone = [sample for sample in routed.request.samples if sample not in routed.done]
        if routed.worker is not None:
            self._send(routed.worker, Cancel(key, gone))
        return gone

    # -- what workers say -------------------------------------------------------------------------

    def _hear(self, worker: Worker, message: object) -> None:
        if isinstance(message, Obeyed):
            self._obeyed[worker] = message
        else:
            super()._hear(worker, message)

    def _join(self, worker: Worker) -> None:
        waiting = self._routing.join(worker, self._ready[worker].stats.blocks_total)
        self._send(worker, Begin(self._job, self._seed, Lengths(), arriving=True))
        self._route(waiting)

    def _leave(self, worker: Worker, why: str) -> None:
        left = self._routing.leave(worker)
        for each in left:
            if not each.may_go_on:
                self._routing.drop(each.request.key)
                self._happened.lost[each.request.key] = f"the engine that had it is gone: {why}"
        self._route([each for each in left if each.may_go_on])

    def _take(self, worker: Worker, message: Finished) -> None:
        happened = self._happened
        for drawn in message.drawn:
            completion = self._routing.finish(drawn)
            if completion is not None:
                happened.finished.append(completion)
        happened.grown += [each for each in message.grown if self._routing.tell(each.key)]
        for key, error in message.refused.items():
            if self._routing.drop(key) is not None:
                happened.refused[key] = error
