"""A fresh interpreter beside this process: no fork, so that nothing of this process is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

from sharegen.common.import_path import SAFE_PATH


def start_interpreter(
    arguments: Sequence[str], descriptor: int, folders: Iterable[str]
) -> subprocess.Popen[bytes]:
    """Start Python with arguments, the last of which is the number of a descriptor it is handed.

    It hears no Ctrl-C, which is for this process. Its standard input is a pipe that nobody writes
    to, which says when this process ends, however it does. folders: where it imports from.
    """
    imports = {"PYTHONPATH": os.pathsep.join(folders), SAFE_PATH: "1"}
    return subprocess.Popen(
        [sys.executable, "-P", *arguments, str(descriptor)],
        pass_fds=[descriptor],
        stdin=subprocess.PIPE,
        stdout=2,  # stdout is for data
        env=os.environ | imports,
        process_group=0,
    )
