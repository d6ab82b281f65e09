"""Run a script or a module as Python would, with sharegen in vLLM's place."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from sharegen.as_vllm.imports import stand_in, what_to_use

_USAGE = "usage: python -m sharegen.as_vllm SCRIPT.py [ARGS], or -m MODULE [ARGS]"


def main(arguments: list[str]) -> None:
    """Run what the arguments name; its exit code is ours.

    Args:
        arguments: those of Python itself: a script or `-m MODULE`, and what this is given.

    Raises:
        SystemExit: with 2 where they name neither, or a script that is not there.
    """
    is_module = arguments[:1] == ["-m"]
    program = arguments[int(is_module) : int(is_module) + 1]
    if not program or program[0].startswith("-"):
        _leave(_USAGE, 0 if program in (["-h"], ["--help"]) else 2)
    name, sys.argv = program[0], arguments[int(is_module) :]
    if not is_module and not Path(name).is_file():
        _leave(f"sharegen.as_vllm: there is no script {name}\n{_USAGE}", 2)
    # As Python has it: the script's folder, or the current one for a module.
    sys.path.insert(0, os.getcwd() if is_module else str(Path(name).resolve().parent))
    stand_in()
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except (ImportError, AttributeError) as error:
        if said := what_to_use(error):
            error.add_note(said)
        raise


def _leave(said: str, code: int) -> None:
    print(said, file=sys.stderr if code else sys.stdout)
    raise SystemExit(code)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, by `python -m`: the program says what is there
    main(sys.argv[1:])
