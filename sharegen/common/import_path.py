"""Where the processes that we start import from: never from the current folder first.

Python itself puts the current folder before everything else for `python -m`, `-c` and `-`. A
model's folder may hold a `json.py`, and that is code which nobody has asked to run.
"""

from __future__ import annotations

import os
import sys

SAFE_PATH = "PYTHONSAFEPATH"
"""The variable that is Python's option -P for a whole tree of processes."""


def import_path() -> list[str]:
    """This process's folders of modules, for another process.

    The current folder comes last, where this process has it because it is a script there or was
    begun by `python -m`: the user's own modules are found, and stand for no others. What the user
    names in PYTHONPATH keeps its place.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        return [folder for folder in sys.path if folder]
    folders = [folder or here for folder in sys.path]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here in (os.path.abspath(name) for name in named if name):
        return folders
    others = [folder for folder in folders if os.path.realpath(folder) != os.path.realpath(here)]
    return others + [here] * (len(others) < len(folders))
