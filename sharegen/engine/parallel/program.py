"""Our own modules as programs beside the one that the user has begun.

`python -P -m sharegen.engine.parallel.program MODULE RANKS FD` runs `MODULE.main(FD)`. Where it is
to have several ranks, it begins the processes of the others.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import select
import signal
import sys

from sharegen.common.kept_bytecode import kept_bytecode
from sharegen.common.start_clock import IMPORTS, START
from sharegen.engine.model.starting.lean_imports import import_transformers
from sharegen.engine.model.starting.modules_of_frames import modules_of_frames
from sharegen.engine.parallel.early import EARLY, RANK, WORKER


def _end_with_parent() -> None:
    """Have the system end this process when nobody holds the other end of its standard input.

    Without it a process whose driver was killed goes on until it has imported what it needs: what
    a library does in one go no thread interrupts. Elsewhere than on Linux that is so.
    """
    if sys.platform != "linux":
        return
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    ended = select.poll()
    ended.register(0, 0)
    if ended.poll(0):  # it was closed before
        os._exit(0)


if __name__ == "__main__":
    _end_with_parent()
    _, _module, _ranks, _descriptor = sys.argv
    with kept_bytecode():
        with START.part(IMPORTS), modules_of_frames():
            if int(_ranks) > 1:
                EARLY.begin(RANK, int(_ranks) - 1)
            if _module in (WORKER, RANK):
                import_transformers(compiles=True, shards=True)
            _program = importlib.import_module(_module)
        _program.main(int(_descriptor))
