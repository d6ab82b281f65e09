"""A server as a whole: a model is loaded, an address is listened on, signals end both."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from socket import socket
from types import FrameType
from typing import TYPE_CHECKING, Any

from sharegen.common import confined
from sharegen.common.parameters.machine import EngineParameters
from sharegen.common.parameters.parameter import values_of
from sharegen.engine.config import EngineConfig
from sharegen.engine.parallel.copies import ForkServer
from sharegen.engine.parallel.dispatcher import Dispatcher
from sharegen.engine.parallel.opening import open_dispatcher
from sharegen.engine.text.vocabulary import Vocabulary
from sharegen.errors import SharegenError, UsageError
from sharegen.job.engines import setting_of
from sharegen.job.imports import on_cpu
from sharegen.job.machine import tokenizer_of
from sharegen.serve import batch_api, training_api
from sharegen.serve.about import AboutApi
from sharegen.serve.api import Api, refusing
from sharegen.serve.asked import Reader
from sharegen.serve.batch_runner import BatchRunner
from sharegen.serve.engine_loop import EngineLoop
from sharegen.serve.file_store import FileStore
from sharegen.serve.http_messages import Open, Prepare
from sharegen.serve.http_processes import HttpProcesses, beside
from sharegen.serve.limits import Limits
from sharegen.serve.listening import Listener, bound, is_local
from sharegen.serve.training_api import TrainingApi
from sharegen.workload import chat
from sharegen.workload.configuration import Configuration

if TYPE_CHECKING:
    from sharegen.serve.ticket import News, Ticket

_LAST_WORDS = 5.0  # seconds to tell clients that the engine has ended
_ECHO = 0.2  # seconds for which a signal is the one before: `timeout` sends each of its own twice


@dataclass(frozen=True)
class Address:
    """Where to listen. key: what clients bring; insecure: whether other machines need none."""

    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    insecure: bool = False

    def check(self) -> None:
        """Raise UsageError for an address that others reach without a key."""
        if self.key is not None and not self.key:
            raise UsageError("--api-key is empty: give a key, or leave it out")
        if not (is_local(self.host) or self.key is not None or self.insecure):
            raise UsageError(
                f"--host {self.host}: other machines could ask this server: give it an --api-key, "
                "or --insecure where whoever reaches it may"
            )


class Server:
    """Engines, and an endpoint that asks them.

    names: what clients call the model, the first its own. sock: where to listen, bound already.
    store: of files and batches, if there are to be any. weights_folder: below which a trainer has
    new weights, if one may change them.
    """

    def __init__(
        self,
        engines: Dispatcher,
        tokenizer: Any,
        configuration: Configuration,
        names: tuple[str, ...],
        address: Address,
        limits: Limits,
        sock: socket,
        processes: HttpProcesses,
        store: FileStore | None = None,
        weights_folder: Path | None = None,
    ) -> None:
        self.loop = EngineLoop(engines, configuration.sampling.seed)
        self.loop.keys = count(0, processes.number + 1)  # the others are the processes' own
        self.grace = limits.grace
        self._processes = processes
        model = engines.ready
        reader = Reader(configuration, tokenizer, names, model.context_length, limits)
        self.api = Api(
            self.loop, reader, names[0], model.fingerprint, tokenizer,
            Vocabulary.of(tokenizer).utf8, limits, address.key, is_local(address.host),
            processes.counts,
        )  # fmt: skip
        self.api.add(AboutApi(names, model.context_length, self.loop, self.api).routes)
        self.batches: BatchRunner | None = None
        if store is None:
            self.api.add(refusing(batch_api.PATHS, batch_api.NOT_SERVED))
        else:
            self.batches = BatchRunner(
                store, reader, self.loop, self.api.submit,
                lambda: reader.settings(self.api.fingerprint), limits,
            )  # fmt: skip
            self.api.add(batch_api.BatchApi(store, self.batches, self.api.bodies, limits).routes)
        if weights_folder is None:
            self.api.add(refusing(training_api.PATHS, training_api.NOT_SERVED))
        else:
            trainer = TrainingApi(
                weights_folder, self.loop, self.api, self.batches, self._change_model
            )
            self.api.add(trainer.routes)
        besides = [] if self.batches is None else [self.batches.run]
        self.listener = Listener(
            self.api.app, sock, limits, processes.counts, [*besides, self._hear_processes],
            accepts=not processes.number,
        )  # fmt: skip
        self.loop.tell = self._tell
        self.dropped = False
        """Whether it has ended with requests that had not finished."""

    async def _hear_processes(self) -> None:
        listening = self.listener.server
        await self._processes.run(self.loop, listening.take, listening.accept)

    def _change_model(self, fingerprint: str) -> None:
        self.api.fingerprint = fingerprint
        self._processes.change(fingerprint)

    def _tell(self, news: list[tuple[Ticket, News]]) -> None:
        if not self.listener.is_over:
            self.listener.loop.call_soon_threadsafe(self.api.tell, news)

    def run(self) -> None:
        """Answer until it is told to end; raises what the engine dies of, when all know it."""
        self.listener.start()
        try:
            self.loop.run()
        finally:
            self._end_listening()
            self.listener.join(_LAST_WORDS)

    def end(self) -> None:
        """From any thread: take nothing more, and end when all is answered or the grace is over."""
        self.api.ends = True
        self.loop.resume()  # so that what is held can finish
        self._end_listening()
        threading.Thread(target=self._wait, daemon=True).start()

    def _end_listening(self, at_once: bool = False) -> None:
        """Begin nothing more."""
        if self.batches is not None:
            self.listener.loop.call_soon_threadsafe(self.batches.end)
        self.listener.loop.call_soon_threadsafe(self._processes.end, at_once)
        self.listener.end(at_once)

    def _wait(self) -> None:
        self.listener.join(self.grace)
        if self.listener.is_over:
            self.loop.end()
        else:
            self.end_now()

    def end_now(self) -> None:
        """From any thread: end at once."""
        self.dropped = self.api.counts.total("open") > 0
        self._end_listening(at_once=True)
        self.loop.drop()


def serve(
    configuration: Configuration,
    address: Address,
    limits: Limits,
    names: tuple[str, ...],
    ready: Callable[[str, str], None],
    http_processes: int | None = None,
    batch_folder: Path | None = None,
    weights_folder: Path | None = None,
) -> None:
    """Answer requests until a signal ends it.

    http_processes: that clients reach in this one's place; None: as this machine has cores.
    batch_folder: where files and batches are kept, if there are to be any. weights_folder: below
    which a trainer has new weights, if one may pause the server and change them.
    ready: called with the model's name and the base URL when requests are answered.

    Raises UsageError for what cannot be, and what the engine dies of.
    """
    address.check()
    if weights_folder is not None and not weights_folder.is_dir():
        raise UsageError(f"--weights-folder {weights_folder}: is no folder: make it first")
    _refuse_what_is_not_served(configuration)
    computes_here = on_cpu(configuration)
    if http_processes is None:
        http_processes = beside(computes_here)
    prepare = Prepare(
        configuration, names, limits, address.key, is_local(address.host), 0, http_processes + 1
    )
    with (
        closing(bound(address.host, address.port, limits)) as sock,
        _opened(batch_folder, limits) as store,
        closing(HttpProcesses(http_processes, prepare, sock)) as processes,
        closing(ForkServer()) as copied,
    ):
        if computes_here and configuration.machine.tensor_parallel_size == 1:
            copied.begin()  # what an engine imports, while this process reads the tokenizer
        confined.prepare(chat.render)
        tokenizer = tokenizer_of(configuration)
        with closing(_open(configuration, tokenizer, copied)) as engines:
            server = Server(
                engines, tokenizer, configuration, names, address, limits, sock, processes, store,
                weights_folder,
            )  # fmt: skip
            processes.open(Open(engines.ready.context_length, engines.ready.fingerprint))
            with _Signals(server):
                ready(names[0], _url(address.host, sock))
                server.run()
    if server.dropped:
        raise SharegenError("ended with requests that had not finished")


@contextmanager
def _opened(folder: Path | None, limits: Limits) -> Iterator[FileStore | None]:
    """Open a block with the store in a folder, if there is to be one."""
    if folder is None:
        yield None
        return
    with closing(FileStore(folder, limits)) as store:
        yield store


class _Signals:
    """SIGTERM and Ctrl-C: the first lets what runs finish within the grace, the second ends it."""

    _NUMBERS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, server: Server) -> None:
        self._server = server
        self._came: float | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in self._NUMBERS:
            self._before[number] = signal.signal(number, self._on_signal)

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._came is None:
            self._came = now
            self._server.end()
        elif now - self._came >= _ECHO:
            self._server.end_now()


def _refuse_what_is_not_served(configuration: Configuration) -> None:
    if configuration.machine.ray is not None:
        raise UsageError("--ray: a server's engines are on its own machine: use --workers")
    if configuration.machine.deterministic:
        raise UsageError(
            "--deterministic: what a server's prompts share depends on who came before, and so do "
            "their bits: run them as a job"
        )
    if configuration.sampling.decoding == "beam":
        raise UsageError("sampling.decoding: a server draws samples: a beam search takes a job")
    if configuration.sampling.stop_when is not None:
        raise UsageError("--stop-when: a server draws what each request asks for")


def _open(configuration: Configuration, tokenizer: Any, copied: ForkServer) -> Dispatcher:
    machine = configuration.machine
    config = EngineConfig(**values_of(EngineParameters, machine), arriving=True)
    workers = 1 if machine.workers is None else machine.workers
    return open_dispatcher(setting_of(configuration, tokenizer, config), workers, copied)


def _url(host: str, sock: Any) -> str:
    at = f"[{host}]" if ":" in host else host
    return f"http://{at}:{sock.getsockname()[1]}/v1"
