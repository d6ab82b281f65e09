"""The process that workers on a CPU are copies of."""

from __future__ import annotations

import gc
import os
import pickle
import socket
from multiprocessing.connection import Connection

from sharegen.engine.model.starting.lean_imports import import_transformers
from sharegen.engine.model.starting.modules_of_frames import modules_of_frames
from sharegen.engine.parallel.ahead import LoadedAhead, load_ahead
from sharegen.engine.parallel.copies import COPY, LOAD, NUMBER, RUNS, TELL
from sharegen.errors import SharegenError


def _copy(line: socket.socket) -> tuple[int, LoadedAhead | None] | None:
    """Copy this process as often as is asked.

    Returns in a copy: the descriptor of its connection, and the model that was loaded before.
    """
    ahead: LoadedAhead | None = None
    found: LoadedAhead | SharegenError | None = None
    while True:
        asked, descriptors, _, _ = socket.recv_fds(line, NUMBER.size, 1)
        if len(asked) < NUMBER.size:  # the driver is gone
            return None
        (number,) = NUMBER.unpack(asked)
        if number == LOAD:
            found = load_ahead(pickle.loads(_read(line, *NUMBER.unpack(_read(line, NUMBER.size)))))
            ahead = found if isinstance(found, LoadedAhead) else None
            gc.freeze()
            continue
        if number == TELL:
            told = pickle.dumps(found if ahead is None else ahead.outline)
            line.sendall(NUMBER.pack(len(told)) + told)
            continue
        if number != COPY:
            pid, status = os.waitpid(number, os.WNOHANG)
            line.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status) if pid else RUNS))
            continue
        [descriptor] = descriptors
        pid = os.fork()
        if pid == 0:
            line.close()
            return descriptor, ahead
        os.close(descriptor)
        line.sendall(NUMBER.pack(pid))


def _read(line: socket.socket, size: int) -> bytes:
    """So many bytes; fewer where the driver is gone."""
    return line.recv(size, socket.MSG_WAITALL)


def main(descriptor: int) -> None:
    """The process: its driver is at the other end of its descriptor."""
    gc.disable()  # an import makes a million objects that stay: looking at them takes a second
    with modules_of_frames():
        import_transformers()

        from sharegen.engine.parallel.line import Line
        from sharegen.engine.parallel.worker import serve

    gc.freeze()  # what looks for garbage in a copy would else touch, and so copy, all of this
    worker = _copy(socket.socket(fileno=descriptor))
    if worker is not None:
        connection, ahead = worker
        gc.enable()
        serve(Line(Connection(connection)), ahead)
