"""One engine in a process of its own: requests in, completions out, as long as the driver lives.

`python -m sharegen.engine.parallel.worker FD`, with the driver at the other end of FD. What it says
is read as it comes, by a thread of its own: so the driver is never kept waiting with a long message
while this process waits with one for the driver, and its end is noticed at once.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import torch

from sharegen.engine.engine import Engine
from sharegen.engine.execute.process import short_collections
from sharegen.engine.model.checkpoint import load_tokenizer, resolve_device
from sharegen.engine.model.load import load_model
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
    WorkersError,
)
from sharegen.engine.request import Completion
from sharegen.errors import SharegenError

_REPORT_SECONDS = 0.2  # between reports while nothing ends: the driver shows what runs


def serve(connection: Connection[Any, Any]) -> None:
    """Make the engine that the first message describes, and work until the driver hangs up."""
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_read, args=[connection, inbox], daemon=True).start()

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        connection.send(Warned(str(message)))

    warnings.showwarning = warn
    try:
        worker = _Worker(connection, inbox)
        with short_collections():
            worker.work()
    except ConnectionError:
        pass  # the driver is gone, and nobody is left to tell
    except SharegenError as error:
        connection.send(Failed(error))
    except (RuntimeError, MemoryError) as error:  # torch's own: no memory, a fault of the card
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        connection.send(Failed(WorkersError(said)))


def _read(connection: Connection[Any, Any], inbox: SimpleQueue[Any]) -> None:
    """Take what comes; end the process with the driver, whatever it is doing."""
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


class _Worker:
    def __init__(self, connection: Connection[Any, Any], inbox: SimpleQueue[Any]) -> None:
        setting: Setting = inbox.get()
        if setting.threads:
            torch.set_num_threads(setting.threads)
        device = resolve_device(setting.device)
        if device.type == "cuda":  # so that nothing ever touches another GPU
            torch.cuda.set_device(device)
        source = setting.model if isinstance(setting.model, str) else setting.model(device)
        model = load_model(
            source,
            device=device,
            dtype=setting.dtype,
            adapter=setting.adapter,
            trust_remote_code=setting.trust_remote_code,
        )
        tokenizer = setting.tokenizer
        if isinstance(tokenizer, str):
            tokenizer = load_tokenizer(tokenizer, trust_remote_code=setting.trust_remote_code)
        self.engine = Engine(model, tokenizer, setting.config)
        self.connection = connection
        self.inbox = inbox
        self.job = 0
        self.reported = time.monotonic()
        connection.send(
            Ready(
                fingerprint=model.fingerprint,
                dtype=str(model.dtype).removeprefix("torch."),
                context_length=model.context_length,
                slots=self.engine.stats.slots,
                threads=self.engine.threads,
                resident=_resident(),
                stats=self.engine.stats,
            )
        )

    def work(self) -> None:
        """Take messages as they come, and step in between; wait where there is nothing to do."""
        while True:
            while not self.engine.has_work or not self.inbox.empty():
                self._take()
            self._report(self.engine.step())

    def _take(self) -> None:
        match self.inbox.get():
            case Check(requests):
                self.connection.send(Checked(self.engine.errors(requests)))
            case Begin(job, seed):
                self.job = job
                self.engine.begin(seed)
            case Work(requests):
                self.engine.add(requests)
            case End():
                self.engine.end()

    def _report(self, completions: Sequence[Completion]) -> None:
        now = time.monotonic()
        if not completions and now - self.reported < _REPORT_SECONDS:
            return
        # The driver has the requests: their prompts need not come back.
        slim = [replace(c, request=replace(c.request, prompt_token_ids=())) for c in completions]
        self.connection.send(Finished(self.job, slim, self.engine.stats))
        self.reported = now


def _resident() -> int:
    """The most bytes that this process has held so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
