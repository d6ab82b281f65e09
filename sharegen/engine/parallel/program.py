"""Our own modules as programs beside the one that the user has begun."""

from __future__ import annotations

import os
import subprocess
import sys


def begin(module: str, descriptor: int) -> subprocess.Popen[bytes]:
    """Run a module with the number of a descriptor that it is handed.

    It is a program of its own, not a fork, so that it may use a GPU, and a user's script needs no
    guard around its first line. It hears no Ctrl-C, which is for the driver.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, str(descriptor)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=2,  # stdout is for data
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        process_group=0,
    )
