"""The command line: parse, call, print.

Commands import what is heavy (torch, transformers) when they run, so that `--help` and completion
are instant. Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import atexit
import copy
import gc
import shlex
import sys
from functools import cache
from typing import Annotated, Any

import typer

from sharegen import __version__
from sharegen.cli import bench as bench_commands
from sharegen.cli import code as code_command
from sharegen.cli import convert as convert_command
from sharegen.cli import lm_eval as lm_eval_command
from sharegen.cli import plan as plan_command
from sharegen.cli import recipes as recipes_command
from sharegen.cli import report as report_command
from sharegen.cli import run as run_command
from sharegen.cli import runs as runs_command
from sharegen.cli import score as score_command
from sharegen.cli import serve as serve_command
from sharegen.cli import streams, wrong_usage
from sharegen.cli import votes as votes_command
from sharegen.cli.command import Command
from sharegen.cli.job_command import JobCommand, ProgramCommand
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

app = typer.Typer(
    name="sharegen",
    help="Offline batch generation for language models when prompts share text.",
    epilog=_EPILOG,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
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


app.command("run", cls=JobCommand)(run_command.run)
app.command("runs", cls=Command)(runs_command.runs)
app.command("plan", cls=JobCommand)(plan_command.plan)
app.command("vote", cls=Command)(votes_command.vote)
app.command("show", cls=Command)(votes_command.show)
app.command("report", cls=Command)(report_command.report)
app.command("code-sample", cls=ProgramCommand)(code_command.code_sample)
app.command("score", cls=Command)(score_command.score)
app.command("convert", cls=Command)(convert_command.convert)
app.command("serve", cls=Command)(serve_command.serve)
app.command(
    "lm-eval",
    cls=Command,
    context_settings={  # all of it is lm-eval's, its own --help after `run` too
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
    },
)(lm_eval_command.lm_eval)
app.add_typer(bench_commands.app, name="bench")
app.add_typer(recipes_command.app, name="recipes")
app.command("version", cls=Command)(version)


def main(
    arguments: list[str] | None = None, commands: typer.Typer = app, name: str = "sharegen"
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


def _run(given: list[str], debug: bool, commands: typer.Typer, name: str) -> int:
    try:
        with streams.written():
            command = f"{name} {shlex.join(given)}"
            code = _tree(commands, given[0])(given, name, standalone_mode=False, obj=command)
    except (SharegenError, _PARSER_ERROR) as error:
        if debug:
            raise
        return _explain(error)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except streams.ReaderLeft:
        return 0
    if code == _INTERRUPTED:  # which newer versions of Typer make of Ctrl-C themselves
        complain("interrupted")
    return code if isinstance(code, int) else 0


@cache
def _tree(commands: typer.Typer, first: str) -> Any:
    """The commands as Typer's parser has them: of all, it takes a tenth of a second to make.

    first: the first argument: where it names one of the commands, the others are left out.
    """
    named = [command for command in commands.registered_commands if command.name == first]
    if named and commands.registered_callback is not None:  # else it would be the one command
        commands = copy.copy(commands)
        commands.registered_commands, commands.registered_groups = named, []
        return typer.main.get_group(commands)  # get_command makes a lone command the whole parser
    return typer.main.get_command(commands)


def _explain(error: Exception) -> int:
    """Say what was wrong in one line; returns the exit code."""
    message = wrong_usage.explain(error) if isinstance(error, _PARSER_ERROR) else str(error)
    what = "" if isinstance(error, Interrupted | NothingToDo) else "error: "
    complain(what + message)
    return error.exit_code  # type: ignore[attr-defined, no-any-return]
