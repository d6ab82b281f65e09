"""The options of a job, declared once for every command that takes them.

A command takes one argument of type `JobOptions` (or `RunOptions`, which adds where the journal
goes) and is wrapped in `with_options`, which puts the fields of the dataclass on its command line.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sharegen.cli.flags import assigned, given
from sharegen.cli.key_options import KEYS, RUN_KEYS, options_of, said_by
from sharegen.cli.parameters import option, parse_journal
from sharegen.common.shard import Shard

_data = functools.partial(option, "Data")
_sampling = functools.partial(option, "Sampling")
_output = functools.partial(option, "Output")


_JobKeys = options_of("_JobKeys", KEYS)


@dataclass(frozen=True)
class JobOptions(_JobKeys):  # type: ignore[valid-type, misc]  # made of declarations
    """What decides a job; None leaves it to the recipe. The keys of a recipe bring their own."""

    shard: Annotated[
        str | None,
        _data(
            "--shard",
            "Do only this part of the job, say 1/8; slurm takes it from a job array's task.",
            "I/N",
        ),
    ] = None
    set: Annotated[
        list[str] | None,
        _sampling(
            "--set",
            "Any key of the recipe, as sampling.min_p=0.05 (repeatable).",
            "KEY=VALUE",
        ),
    ] = None
    show_config: Annotated[
        bool,
        _output(
            "--show-config",
            "Print the job as recipe and flags make it, as YAML, and do nothing else.",
        ),
    ] = False

    @property
    def part(self) -> Shard | None:
        """What --shard says. Raises UsageError for what is no part."""
        return None if self.shard is None else Shard.parse(self.shard)

    def flags(self) -> dict[str, Any]:
        """What was given, shaped like a recipe (see `sharegen.workload.configuration.resolve`).

        Raises UsageError for a --set that is no assignment.
        """
        from sharegen.common.mappings import merge

        values = given(said_by(self))
        for assignment in self.set or ():
            values = merge(values, assigned(assignment))
        return values


_RunKeys = options_of("_RunKeys", RUN_KEYS, JobOptions)


@dataclass(frozen=True)
class RunOptions(_RunKeys):  # type: ignore[valid-type, misc]
    """A job that is run: where its journal goes, and how much is said."""

    output: Annotated[
        Path | None,
        _output(
            "--output, -o",
            "The journal; of `run batch`, the answers.",
            "FILE",
            default="runs/<recipe>-<hash>.jsonl",
            parser=parse_journal,
        ),
    ] = None
    overwrite: Annotated[bool, _output("--overwrite", "Start the journal anew.")] = False
    adopt: Annotated[
        bool,
        _output(
            "--adopt",
            "Go on with a journal whose run file is missing or broken: its samples are taken to be "
            "of this job.",
        ),
    ] = False
    strict: Annotated[bool, _output("--strict", "Stop at the first bad row.")] = False
    retry_failed: Annotated[
        bool,
        _output(
            "--retry-failed", "Draw samples again that failed (their logits were NaN or infinite)."
        ),
    ] = False
    show_start: Annotated[
        bool,
        _output("--show-start", "Say, at the end, what the time to the first sample was taken by."),
    ] = False
    verify: Annotated[
        int | None,
        _output(
            "--verify",
            "When all is drawn, compute so many random steps again with the model's own "
            "attention, and report the largest difference.",
            "STEPS",
            min=1,
        ),
    ] = None
    check_determinism: Annotated[
        int | None,
        _output(
            "--check-determinism",
            "When all is drawn, draw so many finished samples again in another batch, and compare "
            "them byte for byte.",
            "N",
            min=1,
        ),
    ] = None
    execute: Annotated[
        bool,
        _output(
            "--execute", "Run the programs in a sandbox as they are drawn, for --stop-when right=K."
        ),
    ] = False
    unsafe_execution: Annotated[
        bool,
        _output(
            "--unsafe-execution",
            "With --execute: run them even where nothing can isolate them from your files "
            "and network.",
        ),
    ] = False
    quiet: Annotated[bool, _output("--quiet, -q", "Print the journal's path, nothing else.")] = (
        False
    )


@dataclass(frozen=True)
class ProgramOptions(RunOptions):
    """A job whose dataset is an argument and whose prompts are about no document.

    Both flags are left out of the help; the error for one says why it is refused.
    """

    dataset: Annotated[str | None, typer.Option("--dataset", hidden=True)] = None
    document: Annotated[str | None, typer.Option("--document", hidden=True)] = None
