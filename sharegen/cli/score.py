"""`sharegen score`: samples judged, programs by their tests and answers by the gold ones."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sharegen.cli.answer_options import RecipeOption, SetOption, answers_by
from sharegen.cli.code import SchemaOption
from sharegen.cli.json_output import JsonOption, print_json
from sharegen.cli.parameters import parse_path, parse_size
from sharegen.cli.telling import say, stderr_console, warn_unconfined
from sharegen.common.cores import available_cores
from sharegen.common.log import log
from sharegen.common.printable import printable, visible
from sharegen.errors import UsageError

if TYPE_CHECKING:
    from sharegen.job.scoring import Samples
    from sharegen.results.journal.pool import Pool
    from sharegen.results.sandbox.system import Isolation
    from sharegen.results.scoring.passk import PassEstimate
    from sharegen.results.scoring.score_file import Verdict
    from sharegen.results.stopping.stopped import Stopped

_DATA, _SANDBOX, _ESTIMATES = "Data", "Sandbox", "Estimates"


def score(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="Journals, or samples of other tools.", parser=parse_path
        ),
    ],
    execute: Annotated[
        bool,
        typer.Option("--execute", help="Run the programs.", rich_help_panel=_SANDBOX),
    ] = False,
    unsafe_execution: Annotated[
        bool,
        typer.Option(
            "--unsafe-execution",
            help="With --execute: run them even where nothing can isolate them from your files "
            "and network.",
            rich_help_panel=_SANDBOX,
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            help="CPU seconds of one test.",
            min=0.1,
            metavar="SECONDS",
            rich_help_panel=_SANDBOX,
        ),
    ] = 4.0,
    memory: Annotated[
        int,
        typer.Option(
            "--memory",
            help="Memory of one program, such as 1GiB.",
            parser=parse_size,
            metavar="SIZE",
            rich_help_panel=_SANDBOX,
        ),
    ] = "1GiB",  # type: ignore[assignment]
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            help="Programs at a time.",
            min=1,
            metavar="N",
            show_default="one a core",
            rich_help_panel=_SANDBOX,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="Where the tests are, if the file does not say: apps, humaneval, mbpp, "
            "livecodebench, a file or a hub id.",
            metavar="DATASET",
            rich_help_panel=_DATA,
        ),
    ] = None,
    schema: SchemaOption = None,
    split: Annotated[
        str | None,
        typer.Option("--split", help="Split of --dataset.", metavar="SPLIT", rich_help_panel=_DATA),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Score everything anew.", rich_help_panel=_DATA)
    ] = False,
    pooled: Annotated[
        bool,
        typer.Option(
            "--pool",
            help="Take the samples of one job together, also of several seeds.",
            rich_help_panel=_DATA,
        ),
    ] = False,
    ks: Annotated[
        list[int] | None,
        typer.Option(
            "--k",
            help="Estimate pass@K and maj@K (repeatable).",
            min=1,
            metavar="K",
            show_default="1, 5, 10, 50 and 100",
            rich_help_panel=_ESTIMATES,
        ),
    ] = None,
    recipe: RecipeOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge samples: programs by their tests, mathematics by the gold answers.

    Programs run in a sandbox, and only with --execute. Verdicts are kept in .sharegen/
    beside FILE; running the same command again continues. Then pass@k (and maj@k for mathematics)
    with 95% intervals. A journal brings those of its shards along.

    \b
    Examples:
      sharegen score runs/code-sample-1a2b3c4d.jsonl --execute
      sharegen score samples.jsonl --dataset humaneval --execute
      sharegen score runs/self-consistency-1a2b3c4d.jsonl --k 1 --k 20
    """
    from sharegen.job.scoring import open_samples, pooled_verdicts
    from sharegen.results.journal.pool import pool
    from sharegen.results.scoring.passk import KS
    from sharegen.results.stopping.stopped import Stopped

    wanted_ks = sorted(set(ks)) if ks else KS
    jobs = []
    by = answers_by(recipe, assignments)
    for found in map(by.of, pool(files, names=pooled, seeds=pooled)):
        samples = [open_samples(path) for path in found.files]
        wanted = dataset is not None or schema is not None
        rows = None if samples[0].has_programs or wanted else _mathematics(found, wanted_ks)
        verdicts = None
        if rows is None:
            verdicts = {
                each.path: _programs(
                    each,
                    execute=execute,
                    unsafe=unsafe_execution,
                    timeout=timeout,
                    memory=memory,
                    workers=workers,
                    where=(dataset, schema, split),
                    overwrite=overwrite,
                )
                for each in samples
            }
            if samples[0].configuration is not None:
                _print_next(found.path)
            stopped = Stopped.of(found)
            if stopped is not None:
                _say_how(found.name, stopped)
            rows = _by_difficulty(pooled_verdicts(found, verdicts, stopped), stopped, wanted_ks)
        _say_too_few(found.name, ks or (), rows)
        if as_json:
            jobs.append(_job(found, rows, verdicts))
        else:
            _print_estimates(found.name, rows)
    if as_json:
        print_json({"jobs": jobs})


EstimateRows = list[tuple[str, list["PassEstimate"]]]
"""Groups of problems with the estimates over them; all problems go by the measure's name."""

_MEASURES = ("pass@k", "maj@k")


def _mathematics(found: Pool, ks: Sequence[int]) -> EstimateRows | None:
    """Estimates from answers; None where there are no gold answers."""
    from sharegen.results.answers.equality import equality_used
    from sharegen.results.export.formats import format_of
    from sharegen.results.scoring.passk import majority_estimates, pass_estimates
    from sharegen.results.scoring.vote import tally
    from sharegen.results.stopping.stopped import Stopped, counted

    if format_of(found.files[0]) != "sharegen":
        return None
    stopped = Stopped.of(found)
    votes = [v for v in tally(counted(found.records(), stopped)) if v.gold is not None]
    if not votes:
        return None
    used = equality_used(pair for vote in votes for pair in vote.comparisons)
    said = used or "answers are compared by value and spelling, which settles them all"
    say(f"{found.name}: {said}")
    first = None if stopped is None else stopped.first
    if stopped is not None:
        _say_how(found.name, stopped)
    majorities = majority_estimates([(vote.answers[:first], vote.right) for vote in votes], ks)
    if stopped is not None and stopped.enough is not None:
        counts = [(vote.samples, vote.right_samples) for vote in votes]
        return [("pass@k", pass_estimates(counts, ks, stopped.enough)), ("maj@k", majorities)]
    counts = [vote.among(first or vote.samples) for vote in votes]
    return [("pass@k", pass_estimates(counts, ks)), ("maj@k", majorities)]


def _say_how(name: str, stopped: Stopped) -> None:
    """Say how estimates stay unbiased although outcomes decided how many samples were drawn."""
    first = f"the first {stopped.first:,} samples, which every problem has whatever they say"
    how = f"pass@k and maj@k are estimated from {first}: of more they would be biased"
    if stopped.enough is not None:
        how = (
            f"pass@k counts the ways to the {stopped.enough:,} right samples that ended a problem, "
            f"for the usual formula would be biased; maj@k is estimated from {first}"
        )
    said = (f"{name}: {stopped.in_words()}", f"{name}: {how}")
    for line in said:
        say(line)


def _programs(
    samples: Samples,
    *,
    execute: bool,
    unsafe: bool,
    timeout: float,
    memory: int,
    workers: int | None,
    where: tuple[str | None, str | None, str | None],
    overwrite: bool,
) -> list[Verdict]:
    """Run what has no verdict yet; the verdicts on all."""
    from sharegen.cli.score_progress import ScoreProgress
    from sharegen.job.interrupt import Interrupted, interrupts
    from sharegen.job.scoring import dataset_of, score_programs
    from sharegen.results.sandbox.host import choose_isolation, memory_in_words
    from sharegen.results.sandbox.limits import MIB, Limits
    from sharegen.results.scoring.score_file import scores_path

    def isolate() -> Isolation:
        if not execute:
            raise UsageError(
                f"{samples.path}: scoring runs programs that a model wrote: add --execute to run "
                "them in a sandbox"
            )
        isolation = choose_isolation(unsafe)
        if isolation == "none":
            warn_unconfined()
        say(f"sandbox: {isolation}; {memory_in_words(isolation)}")
        return isolation

    if memory < MIB:
        raise UsageError(f"--memory {memory} bytes: too little for any program; 1GiB is usual")
    tests = dataset_of(samples, *where)
    limits = Limits(cpu_seconds=timeout, wall_seconds=2 * timeout + 2, memory=memory)
    try:
        with interrupts(), ScoreProgress(stderr_console()) as progress:
            verdicts = score_programs(
                samples,
                tests,
                isolate,
                limits,
                workers or available_cores(),
                overwrite=overwrite,
                planned=progress.plan,
                scored=progress.advance,
            )
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted: the verdicts so far are in {scores_path(samples.path)}; run the same "
            "command again to continue"
        ) from None
    results = Counter(verdict.result for verdict in verdicts)
    line = ", ".join(f"{result} {count:,}" for result, count in results.most_common())
    say(f"{scores_path(samples.path)}: {line}")
    return verdicts


def _print_next(journal: Path) -> None:
    page = journal.with_name(journal.name.removesuffix(".jsonl") + ".html")
    command = shlex.join(["sharegen", "report", str(journal), "--html", str(page)])
    say(f"next: {command}")


def _by_difficulty(
    verdicts: Sequence[Verdict], stopped: Stopped | None, ks: Sequence[int]
) -> EstimateRows:
    from sharegen.results.scoring.passk import pass_estimates

    counts: dict[str, tuple[str | None, list[bool]]] = {}
    for verdict in verdicts:
        if verdict.result != "unscorable":
            entry = counts.setdefault(verdict.problem_id, (verdict.difficulty, []))
            entry[1].append(verdict.passed)
    groups: dict[str, list[tuple[int, int]]] = {"all": []}
    order = ("introductory", "interview", "competition", "easy", "medium", "hard")
    present = {difficulty for difficulty, _ in counts.values() if difficulty}
    for name in [*(o for o in order if o in present), *sorted(present - set(order))]:
        groups[name] = []
    for difficulty, passed in counts.values():
        for name in {"all", difficulty or "all"}:
            groups[name].append((len(passed), sum(passed)))
    enough = None if stopped is None else stopped.enough
    return [(name, pass_estimates(problems, ks, enough)) for name, problems in groups.items()]


def _job(
    found: Pool, rows: EstimateRows, verdicts: Mapping[Path, list[Verdict]] | None
) -> dict[str, Any]:
    """What `--json` says of a job; verdicts: of its programs, None where answers are compared."""
    run = found.run
    sampling = {} if run is None else run.settings.get("sampling") or {}
    results = Counter(v.result for of_file in (verdicts or {}).values() for v in of_file)
    return {
        "name": found.name,
        "files": [str(path) for path in found.files],
        "stop_when": sampling.get("stop_when"),
        "answers": None if run is None else run.answers.get("hash"),
        "results": None if verdicts is None else dict(results.most_common()),
        "estimates": [
            {"group": "all" if group in _MEASURES else group} | dataclasses.asdict(estimate)
            for group, estimates in rows
            for estimate in estimates
        ],
    }


def _say_too_few(title: str, ks: Sequence[int], rows: EstimateRows) -> None:
    """Name each requested k for which no problem has enough samples."""
    there = {estimate.k for _, estimates in rows for estimate in estimates}
    for k in sorted(set(ks) - there):
        log(f"{title}: --k {k}: no problem with {k} samples or more can be scored")


def _print_estimates(title: str, rows: EstimateRows) -> None:
    """The table of one job's files, on stdout: a line for each estimate."""
    table = Table(title=visible(title), title_justify="left")
    columns = (("group", "left"), ("measure", "left"), ("mean", "right"))
    for name, justify in (*columns, ("95% interval", "right"), ("problems", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for group, estimates in rows:
        for row in estimates:
            interval = f"{row.low:.1%} – {row.high:.1%}"
            name = "all" if group in _MEASURES else visible(group)
            table.add_row(name, row.name, f"{row.mean:.1%}", interval, f"{row.problems:,}")
        table.add_section()
    if not any(estimates for _, estimates in rows):
        print(printable(f"{title}: no problem can be scored"))
        return
    Console(highlight=False).print(table)
