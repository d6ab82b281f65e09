"""The ranks above 0 of a model that is cut among ranks, as rank 0 knows them.

Rank 0 has the whole engine, in the process that asks for it. The others have what lies on the
device: a shard of the model and of the KV cache, and a runner. Before each step rank 0 broadcasts
to them its batch, which is data, and then all run it: that is all that they ever need to know.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait

from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.model.tensor_parallel import ranks
from sharegen.engine.parallel.early import RANK
from sharegen.engine.parallel.launch import EngineProcess
from sharegen.engine.parallel.liveness import LISTEN_SECONDS, Liveness
from sharegen.engine.parallel.meeting import Meeting
from sharegen.engine.parallel.messages import Failed, Here, Join
from sharegen.errors import SharegenError

_REASON_SECONDS = 5.0  # within which it is known which rank is gone, whoever waited for it
_LEAVE_SECONDS = 10.0  # for the others to end by themselves
_STUCK_SECONDS = 6.0  # after which nothing brings this process back that waits for one
_POLL_SECONDS = 0.0001  # between looks at a step that takes a hundred times as long


class RanksError(SharegenError):
    """A rank is gone, and with it its shard of the model."""


class TensorParallelWorkers:
    """Processes of this machine that end with this one.

    When one is gone, all are ended, and whatever this process waits for on them fails. meeting:
    where all ranks meet, which is closed behind the last of them. stuck: called with the reason
    where this process waits all the same, inside its GPU's driver perhaps; it is ended then. None
    leaves it: what it has besides is not ours to end.
    """

    def __init__(
        self,
        joins: Sequence[Join],
        meeting: Meeting,
        stuck: Callable[[SharegenError], None] | None = None,
    ) -> None:
        self._meeting = meeting
        self._stuck = stuck
        self._inside = False  # of what all ranks do
        self._liveness: Liveness[int] = Liveness()
        self._processes = [EngineProcess(join, RANK) for join in joins]
        self._here = 0
        self._leaving = self._ended = False
        self._lost: SharegenError | None = None
        self._changed = threading.Condition()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        atexit.register(self.end)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def meet(self, connect: Callable[[], ranks.Ranks]) -> ranks.Ranks:
        """Connect to them, once all are there. Raises what became of one that is not."""
        found: list[ranks.Ranks | SharegenError] = []

        def join() -> None:
            try:
                found.append(connect())
            except SharegenError as error:
                found.append(error)
            with self._changed:
                self._changed.notify_all()

        with self._changed:
            self._changed.wait_for(lambda: self._lost or self._here == len(self._processes))
            if self._lost is None:
                # In a thread, for nothing else ends its wait for a rank that is gone by then.
                threading.Thread(target=join, daemon=True).start()
                self._changed.wait_for(lambda: self._lost or found)
        if self._lost is not None:
            raise self._lost
        [met] = found
        if isinstance(met, SharegenError):
            raise met
        return met

    def broadcast(self, record: object) -> None:
        """What all ranks do next."""
        for process in self._processes:
            process.send(record)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Stand around what all ranks do: where it fails for want of one, that is the error."""
        self._inside = True
        try:
            yield
        except Exception as error:
            # A forward that fails for want of a rank is told as the model's error when it is tried.
            if not isinstance(error, SharegenError) or error.__cause__ is not None:
                with self._changed:
                    self._changed.wait_for(lambda: self._lost, _REASON_SECONDS)
            if self._lost is not None:
                raise self._lost from None
            raise
        finally:
            self._inside = False
        if self._lost is not None:  # what a GPU has waited for is not there
            raise self._lost

    def wait(self, drawn: Drawn) -> None:
        """Wait until it is drawn, or a rank is gone."""
        while not drawn.is_done:
            if self._lost is not None:
                raise self._lost
            time.sleep(_POLL_SECONDS)

    def settle(self) -> None:
        """Wait until this rank's device is idle, before anything on it is freed.

        Freeing waits for the device and keeps all others from it, also those who let it go where it
        waits for a rank that is gone.
        """
        end = time.monotonic() + _STUCK_SECONDS
        while not ranks.is_idle() and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Let them leave. Nothing of the engine is on this rank's device any more."""
        if not self._leaving:
            self._leaving = True
            with suppress(ConnectionError):
                self.broadcast(None)
            ranks.disconnect()
            self._watcher.join(_LEAVE_SECONDS)
        self.end()
        self._watcher.join(_LEAVE_SECONDS)
        atexit.unregister(self.end)

    def end(self) -> None:
        """End them at once, and whatever this rank's device waits for."""
        self._leaving = self._ended = True
        for process in self._processes:
            process.kill()

    def _watch(self) -> None:
        """Hear them until all are gone, which none may be before it is let go."""
        left = {process.connection: rank for rank, process in enumerate(self._processes, start=1)}
        while left:
            began = time.monotonic()
            for connection in wait(list(left), LISTEN_SECONDS):
                assert isinstance(connection, Connection)
                rank = left[connection]
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    del left[connection]
                    if not self._leaving:
                        self._lose_rank(rank, self._processes[rank - 1].why())
                else:
                    self._liveness.heard(rank, message)
                    self._hear(message)
            for rank, why in self._liveness.listened(time.monotonic() - began, left.values()):
                if not self._leaving:
                    self._lose_rank(rank, why)
        for process in self._processes:
            process.end()
        if self._ended:
            ranks.abort()
        self._meeting.close()

    def _lose_rank(self, rank: int, why: str) -> None:
        self._lose(RanksError(f"rank {rank} is gone: {why}"))

    def _hear(self, message: object) -> None:
        match message:
            case Here():
                with self._changed:
                    self._here += 1
                    self._changed.notify_all()
            case Failed(error) if not self._leaving:
                self._lose(error)

    def _lose(self, error: SharegenError) -> None:
        with self._changed:
            self._lost = error
            self._changed.notify_all()
        self.end()
        if self._stuck is not None:
            timer = threading.Timer(_STUCK_SECONDS, self._give_up, [self._stuck, error])
            timer.daemon = True
            timer.start()

    def _give_up(self, stuck: Callable[[SharegenError], None], error: SharegenError) -> None:
        """End the process, if it has not come back from what it did with a rank that is gone."""
        if self._inside:
            stuck(error)
            os._exit(1)
