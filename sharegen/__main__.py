"""The command, as `sharegen` and as `python -m sharegen`: what must stand before anything else.

Importing the command line takes a third of a second, in which Ctrl-C ends the process quietly.
Neither this process nor those that it starts import from the current folder: with `--model .` that
is a model's, where anything may lie.
"""

import os
import sys
from contextlib import AbstractContextManager, nullcontext

_SAMPLING = ("run", "code-sample")


def main() -> None:
    """Run a command and exit with its code."""
    from sharegen.common import ctrl_c

    ctrl_c.quiet_imports()
    try:
        from sharegen.common.import_path import SAFE_PATH
        from sharegen.common.kept_bytecode import kept_bytecode
        from sharegen.common.start_clock import IMPORTS, START

        START.begin()
        os.environ[SAFE_PATH] = "1"
        with kept_bytecode():
            with START.part(IMPORTS):
                begun = _begun(sys.argv[1:])
            with begun:
                with START.part(IMPORTS):
                    from sharegen.cli import main as command

                command()
    except KeyboardInterrupt:  # before the command line handles it, or as it ends
        ctrl_c.leave()
    finally:
        ctrl_c.quiet_end()


def _begun(arguments: list[str]) -> AbstractContextManager[None]:
    """What stands around the command line, begun before that is imported: for what samples alone.

    `--help` and `vote` do not wait for the imports that this takes.
    """
    if not arguments or arguments[0] not in _SAMPLING:
        return nullcontext()
    from sharegen.job.early_imports import workers_imported_at_once

    return workers_imported_at_once(arguments)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, by `python -m`
    main()
