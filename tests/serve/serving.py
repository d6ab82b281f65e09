"""A server in this process, over a tiny model, for the tests of its parts together."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharegen.engine.config import EngineConfig
from sharegen.engine.parallel.dispatcher import Dispatcher
from sharegen.engine.parallel.launch import EngineProcess, Processes
from sharegen.engine.parallel.messages import Setting
from sharegen.errors import SharegenError
from sharegen.job.machine import tokenizer_of
from sharegen.serve.file_store import FileStore
from sharegen.serve.http_messages import Open, Prepare
from sharegen.serve.http_processes import HttpProcesses
from sharegen.serve.limits import Limits
from sharegen.serve.listening import bound
from sharegen.serve.server import Address, Server
from sharegen.workload.configuration import resolve
from tests.engine.parallel.forked import CONTEXT, Forked

if TYPE_CHECKING:
    from openai import OpenAI

KV = 8 << 20
NAME = "tiny"


@dataclass(frozen=True)
class Served:
    """A server that answers at a port of this machine. died: what its engine died of, if it did."""

    server: Server
    processes: HttpProcesses
    port: int
    key: str | None
    died: list[BaseException]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def engines(self) -> Dispatcher:
        return self.server.loop.engines

    def kill(self, number: int) -> None:
        """End an engine's process, as want of memory does."""
        os.kill(self.engines.pids[number], signal.SIGKILL)

    def client(self) -> OpenAI:
        from openai import OpenAI

        return OpenAI(base_url=self.url, api_key=self.key or "none", max_retries=0)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(
        self, path: str, body: Any = None, method: str = "POST", **headers: str
    ) -> tuple[int, Any]:
        """The status and JSON of an answer; body: bytes as they are, or what becomes JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        connection = self.connection()
        try:
            connection.request(method, path, data, given)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()


def _http(channel: socket.socket) -> None:
    from sharegen.serve import http_process

    http_process.main(channel.detach())


class _Popen:
    """An HTTP process as one of subprocess, forked from one that has imported everything."""

    def __init__(self, channel: socket.socket) -> None:
        self._process = CONTEXT.Process(target=_http, args=[channel], daemon=True)
        self._process.start()
        self.pid, self.kill = self._process.pid, self._process.kill

    def wait(self, timeout: float) -> None:
        self._process.join(timeout)


def forked_http(module: str, descriptor: int) -> Any:
    """Start an HTTP process as workers are started here."""
    with socket.socket(fileno=os.dup(descriptor)) as channel:
        return _Popen(channel)


@contextmanager
def serving(
    folder: Path,
    limits: Limits | None = None,
    key: str | None = None,
    kinds: Sequence[type[EngineProcess]] = (Forked,),
    batch_folder: Path | None = None,
    weights_folder: Path | None = None,
    processes: int = 0,
) -> Iterator[Served]:
    """A server of the model in a folder, which ends with the block.

    kinds: of its engines; processes: that clients reach in this one's place.
    """
    limits = limits or Limits(grace=5)
    address = Address(port=0, key=key)
    configuration = resolve("batch", flags={"model": str(folder)}, has_rows=False)
    tokenizer = tokenizer_of(configuration)
    config = EngineConfig(kv_cache_memory=KV, max_sequences=64)
    setting = Setting(str(folder), tokenizer, config, device="cpu", threads=1)
    left = iter(kinds)
    engines = Dispatcher([setting] * len(kinds), Processes(lambda each: next(left)(each)))
    engines.gather()
    sock = bound(address.host, address.port, limits)
    port = sock.getsockname()[1]
    store = None if batch_folder is None else FileStore(batch_folder, limits)
    prepare = Prepare(configuration, (NAME,), limits, key, True, 0, processes + 1)
    beside = HttpProcesses(processes, prepare, sock, forked_http)
    server = Server(
        engines, tokenizer, configuration, (NAME,), address, limits, sock, beside, store,
        weights_folder,
    )  # fmt: skip
    beside.open(Open(engines.ready.context_length, engines.ready.fingerprint))
    died: list[BaseException] = []

    def run() -> None:
        try:
            server.run()
        except SharegenError as error:
            died.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield Served(server, beside, port, key, died)
    finally:
        server.end()
        thread.join(60)
        assert not thread.is_alive()
        beside.close()
        engines.close()
        sock.close()
        if store is not None:
            store.close()
