"""`sharegen run`: sample a recipe's problems into a journal, and say what came out."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sharegen.cli.options import RunOptions
from sharegen.cli.parameters import with_options
from sharegen.cli.recipes import RecipeArgument
from sharegen.cli.telling import say, stderr_console, warn_unconfined
from sharegen.common.printable import visible
from sharegen.common.start_clock import IMPORTS, START
from sharegen.errors import SharegenError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from sharegen.common.shard import Shard
    from sharegen.engine.config import EngineStats
    from sharegen.job.outcome import JobOutcome
    from sharegen.job.sharing_plan import SharingPlan
    from sharegen.results.sandbox.system import Isolation
    from sharegen.results.screen.progress import EarlierProgress, Progress
    from sharegen.workload.configuration import Configuration


@with_options
def run(
    context: typer.Context,
    recipe: RecipeArgument,
    options: RunOptions,
) -> None:
    """Sample every problem of a recipe into a JSONL journal.

    Text that prompts share is computed and stored once. Running the same command again continues
    what was stopped, and shows the result of what is finished; a larger --samples or --limit
    adds to it. With --shard the work is done by several such commands, each a part of it.
    A recipe has defaults of its own: `sharegen run RECIPE --help` shows them.

    \b
    Examples:
      sharegen run self-consistency
      sharegen run self-consistency --help
      sharegen run self-consistency --dataset gsm8k --limit 100 \\
        --model Qwen/Qwen3-0.6B-Base
      sharegen run prompts --dataset prompts.jsonl --model ./model -n 8
      sharegen run batch --dataset requests.jsonl -o answers.jsonl
    """
    run_recipe(recipe, options, context.obj)


def run_recipe(
    recipe: str,
    options: RunOptions,
    command: str,
    flags: dict[str, Any] | None = None,
    schema: str | None = None,
) -> Path | None:
    """Resolve, run, and print what came out; returns the journal's path, None if nothing is run.

    command: what was typed. flags: more of what `options.flags()` gives, on top; schema: see
    `configuration.resolve`.
    """
    from sharegen.common.mappings import merge
    from sharegen.job.early_imports import workers_imported_early

    given = merge(options.flags(), flags or {})
    with nullcontext() if options.show_config else workers_imported_early(given):
        return _run(recipe, options, command, given, schema)


def _run(
    recipe: str, options: RunOptions, command: str, flags: dict[str, Any], schema: str | None
) -> Path | None:
    with START.part(IMPORTS):
        from sharegen.cli.plan import sharing_tree
        from sharegen.job.batch_file import run_batch
        from sharegen.job.run_job import run_job
        from sharegen.results.journal.pool import Pool
        from sharegen.results.screen.start import print_start
        from sharegen.results.screen.summary import print_summary
        from sharegen.results.stopping.stopped import Stopped
        from sharegen.workload.configuration import resolve

    configuration = resolve(recipe, options.dataset, flags, schema)
    shard = options.part
    errors = stderr_console()
    if options.show_config:
        from sharegen.cli.show_config import print_configuration

        print_configuration(configuration)
        return None
    answers = None
    with errors.status("reading the rows and the model …") as status:
        if options.quiet or not errors.is_terminal:
            status.stop()
        else:
            START.on_part = lambda part: status.update(f"{part} …")
        asked: dict[str, Any] = {
            "shard": shard,
            "overwrite": options.overwrite,
            "adopt": options.adopt,
            "strict": options.strict,
            "retry_failed": options.retry_failed,
            "verify": options.verify,
            "check_determinism": options.check_determinism,
            "execute": _isolation(options),
            "watcher": None if options.quiet else _terminal_watcher(errors, status),
            "command": command,
        }
        if configuration.dataset.requests:
            outcome, answers = run_batch(configuration, options.output, **asked)
        else:
            outcome = run_job(configuration, options.output, **asked)
    if options.show_start and outcome.drawn:
        print_start(errors, outcome.run)
    elif options.show_start:
        say("Nothing was drawn, so there was no start to show.")
    if options.verify and outcome.drawn == 0:
        say("Nothing was drawn, so there is nothing to verify.")
    if (options.keep_prompt or options.keep) and outcome.drawn == 0:
        say("Nothing was drawn, so nothing was added to the journal's lines.")
    path = outcome.path
    if options.quiet:
        print(path if answers is None else answers.path)
        return path
    if outcome.drawn == 0:
        plan = _plan_of_asked(configuration, outcome, shard)
        if plan is not None:
            errors.print(sharing_tree(plan))
        say("Everything that was asked is on record already.\n")
    questions = {problem.id: problem.prompt.own for problem in outcome.workload.problems}
    found = Pool(outcome.journals).read_by(outcome.reading)
    sampling = configuration.sampling
    stopped = None
    if sampling.rule is not None:
        stopped = Stopped.read(sampling.rule, sampling.samples, found, of=questions.keys())
    most = max(problem.sampling.samples for problem in outcome.workload.problems)
    print_summary(path, found.records(), outcome.run, most, questions, stopped)
    if answers is not None:
        said = f"{_count(answers.answered, 'answer')} and {_count(answers.errors, 'error')}"
        errors.print(f"\n{said} in [bold]{visible(str(answers.path))}[/]", soft_wrap=True)
    return path


def _plan_of_asked(
    configuration: Configuration, outcome: JobOutcome, shard: Shard | None
) -> SharingPlan | None:
    """The sharing among what is asked, where the journal's last run asked for the same or more.

    None where that is not known and the model is not there any more.
    """
    from sharegen.job.dry_run import plan_job

    asked = outcome.workload.problems
    samples = sum(problem.sampling.samples for problem in asked)
    plan = outcome.plan
    if plan is None or (plan.problems <= len(asked) and plan.samples <= samples):
        return plan  # it is without the rows that do not fit
    try:
        return plan_job(configuration, shard)
    except SharegenError:
        return None


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("s" if number != 1 else "")


def _isolation(options: RunOptions) -> Isolation | None:
    """The sandbox in which programs run while they are drawn; None if they may not."""
    from sharegen.results.sandbox.host import choose_isolation

    if not options.execute:
        return None
    isolation = choose_isolation(options.unsafe_execution)
    if isolation == "none":
        warn_unconfined()
    return isolation


def _terminal_watcher(console: Console, status: Status) -> Any:
    from sharegen.cli.plan import sharing_tree
    from sharegen.job.watcher import Watcher
    from sharegen.results.screen.progress import Progress

    class TerminalWatcher(Watcher):
        """The sharing tree, the journal's name, then a progress bar, on stderr."""

        def planned(self, plan: SharingPlan, path: Path, recorded: int) -> None:
            status.stop()
            console.print(sharing_tree(plan))
            console.print(f"\n[dim]journal:[/] {visible(str(path))}", soft_wrap=True)
            if recorded:
                console.print(f"{recorded:,} of {plan.samples:,} samples on record")
            console.print()

        def sampling(
            self,
            stats: EngineStats,
            samples: int,
            problems: int,
            longest: int | None,
            before: EarlierProgress,
        ) -> AbstractContextManager[Progress | None]:
            return Progress(stats, samples, problems, console, longest, before)

        def drawing_again(self, samples: int) -> None:
            say(f"drawing {_count(samples, 'finished sample')} again, in another batch")

        def verifying(self, steps: int) -> None:
            say(f"verifying {steps:,} steps")

    return TerminalWatcher()
