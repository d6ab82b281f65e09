"""The command line: parse, call, print.

Commands import what is heavy (torch, transformers) when they run, so that `--help` and completion
are instant. Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import atexit
import errno
import gc
import shlex
import sys
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer

from sharegen import __version__
from sharegen.cli import streams, wrong_usage
from sharegen.cli.command import Command
from sharegen.cli.telling import complain
from sharegen.common.log import handled_by
from sharegen.errors import NothingToDo, SharegenError
from sharegen.job.interrupt import Interrupted

_COLLECTIONS = (100_000, 50, 100)
"""New objects before garbage is looked for: importing torch and transformers makes a million that
stay, and at the usual pace some of that time goes into looking at them."""

_PARSER_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""Click's base class of wrong usage, wherever Typer keeps it."""

_EPILOG = """Every command takes --help, and --debug for a traceback.

\b
Exit codes:
  0    done; rows that cannot be asked are named, and fail with --strict alone
  1    failed: in the data, the model, the memory or the disk
  2    wrong usage
  130  interrupted: the same command continues
"""

_INTERRUPTED = 130

_COMMANDS = {
    "run": ("run", "JobCommand"),
    "runs": ("runs", "Command"),
    "plan": ("plan", "JobCommand"),
    "vote": ("votes", "Command"),
    "show": ("votes", "Command"),
    "report": ("report", "Command"),
    "code-sample": ("code", "ProgramCommand"),
    "score": ("score", "Command"),
    "convert": ("convert", "Command"),
    "serve": ("serve", "Command"),
    "lm-eval": ("lm_eval", "Command"),
    "version": (None, "Command"),
}
"""Each command's module, where its function has its name, and how its help is shown. A module is
imported with its command: all of them together take a tenth of a second."""

_GROUPS = ("bench", "recipes")

_PASSED_ON = {"lm-eval": {  # all of it is lm-eval's, its own --help after `run` too
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "ignore_unknown_options": True,
}}  # fmt: skip


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def version() -> None:
    """Print the version.

    \b
    Example:
      sharegen version
    """
    print(__version__)


@cache
def commands_named(first: str | None = None) -> typer.Typer:
    """The command of this name alone, or all of them where none has it."""
    app = typer.Typer(
        name="sharegen",
        help="Offline batch generation for language models when prompts share text.",
        epilog=_EPILOG,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in [first] if first in _COMMANDS else _COMMANDS:
        module, kind = _COMMANDS[name]
        home = sys.modules[__name__] if module is None else import_module(f"{__name__}.{module}")
        shown = Command
        if kind != "Command":
            shown = getattr(import_module(f"{__name__}.job_command"), kind)
        settings = _PASSED_ON.get(name)
        function = getattr(home, name.replace("-", "_"))
        app.command(name, cls=shown, context_settings=settings)(function)
    if first not in _COMMANDS:
        for name in _GROUPS:
            app.add_typer(import_module(f"{__name__}.{name}").app, name=name)
    return app


def main(
    arguments: list[str] | None = None,
    commands: typer.Typer | None = None,
    name: str = "sharegen",
) -> None:
    """The console entry point: runs one of the commands, by default ours, and exits with its code.

    name: what the commands are called by.

    0 done, 1 failed, 2 wrong usage, 130 interrupted. What a user can cause is one line on stderr;
    with --debug, its traceback too.
    """
    gc.set_threshold(*_COLLECTIONS)
    atexit.register(gc.freeze)  # or Python looks through all of that as it ends, for a second
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    with streams.guarded(), handled_by(complain):
        code = _run(given, debug, commands, name)
    sys.exit(code)


def _run(given: list[str], debug: bool, commands: typer.Typer | None, name: str) -> int:
    try:
        with streams.written():
            command = f"{name} {shlex.join(given)}"
            code = _tree(commands, given[0])(given, name, standalone_mode=False, obj=command)
    except (SharegenError, _PARSER_ERROR) as error:
        if debug:
            raise
        return _explain(error)
    except OSError as error:
        if debug or error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        complain("error: too many files are open at once: allow more of them, as by ulimit -n 4096")
        return 1
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except streams.ReaderLeft:
        return 0
    if code == _INTERRUPTED:  # which newer versions of Typer make of Ctrl-C themselves
        complain("interrupted")
    return code if isinstance(code, int) else 0


@cache
def _tree(commands: typer.Typer | None, first: str) -> Any:
    """The commands as Typer's parser has them: of all, it takes a tenth of a second to make.

    first: the first argument: where it names one of ours, the others are left out.
    """
    if commands is None and first in _COMMANDS:
        return typer.main.get_group(commands_named(first))  # get_command makes a lone one the whole
    return typer.main.get_command(commands or commands_named())


def _explain(error: Exception) -> int:
    """Say what was wrong in one line; returns the exit code."""
    message = wrong_usage.explain(error) if isinstance(error, _PARSER_ERROR) else str(error)
    what = "" if isinstance(error, Interrupted | NothingToDo) else "error: "
    complain(what + message)
    return error.exit_code  # type: ignore[attr-defined, no-any-return]
