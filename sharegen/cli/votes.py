"""`sharegen vote` and `sharegen show`: what a journal says."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sharegen.cli.answer_options import RecipeOption, SetOption, answers_by
from sharegen.cli.explaining import print_explained
from sharegen.cli.parameters import parse_path
from sharegen.cli.telling import say
from sharegen.common.files import replace_file
from sharegen.common.printable import printable, visible
from sharegen.errors import DataError, JournalError, SharegenError, UsageError
from sharegen.results.answers.equality import equality_used
from sharegen.results.answers.vote import Vote, tally
from sharegen.results.journal.output import refuse_journal
from sharegen.results.journal.pool import Pool, one_job, pool
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import run_file_path
from sharegen.results.screen.accuracy import accuracy
from sharegen.results.screen.show import ShownPrompt, describe, select
from sharegen.results.stopping.stopped import Stopped, counted

Row = tuple[str, Vote, Stopped | None]
"""The journals that a vote was taken over, by name, the vote, and the rule that stopped them."""


def vote(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Journals (JSONL) that `sharegen run` wrote.",
            parser=parse_path,
        ),
    ],
    at: Annotated[
        int | None, typer.Option("--at", min=1, help="Vote over the first K samples.", metavar="K")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the votes as JSONL; - for standard output.",
            parser=parse_path,
        ),
    ] = None,
    pooled: Annotated[
        bool, typer.Option("--pool", help="Take journals that differ in the seed alone together.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="ID",
            help="Show of one problem what was read in each sample, where and by which rule.",
        ),
    ] = None,
    recipe: RecipeOption = None,
    assignments: SetOption = None,
) -> None:
    """Take the majority vote of every problem.

    Answers are brought to one spelling first (18, 18.00, $18), samples without an answer don't
    vote, and a tie goes to the answer that appears first by sample index. Answers are read from
    the completions anew, by the recipe as its last run had it, or as --recipe and --set say. On a
    terminal the votes are a table, otherwise tab-separated lines. Files of one job vote together,
    others apart; a journal brings those of its shards along. Where --stop-when stopped a job, the
    samples vote that decided it.

    \b
    Examples:
      sharegen vote runs/gsm8k.jsonl
      sharegen vote runs/gsm8k.jsonl --at 5 --output votes.jsonl
      sharegen vote runs/gsm8k.jsonl --set answer.extract=boxed
      sharegen vote runs/gsm8k.jsonl --explain 17
      sharegen vote runs/seed0.jsonl runs/seed1.jsonl --pool -o - | jq .answer
    """
    if output is not None:
        refuse_journal(output)
    by = answers_by(recipe, assignments)
    pools = [by.of(found) for found in pool(files, seeds=pooled)]
    if explain is not None:
        if at is not None or output is not None:
            raise UsageError("--explain shows one problem: leave out --at and --output")
        print_explained(pools, explain)
        return
    rules = [Stopped.of(part) for part in pools]
    taken = [
        tally(counted(part.records(), stopped), at)
        for part, stopped in zip(pools, rules, strict=True)
    ]
    rows: list[Row] = [
        (part.name, vote, stopped)
        for part, votes, stopped in zip(pools, taken, rules, strict=True)
        for vote in votes
    ]
    if not rows:
        raise DataError(f"{pools[0].name}: holds no samples")
    if not any(vote.counts for _, vote, _ in rows):
        raise DataError(
            f"{pools[0].name}: no sample has an answer: the recipe looks for none, or finds none; "
            "--explain ID says why; read them anew by --set answer.extract=KIND or --recipe FILE"
        )
    for part, votes, stopped in zip(pools, taken, rules, strict=True):
        _say_notes(part, votes, at, stopped)
    to_stdout = output is not None and str(output) == "-"
    if to_stdout:
        sys.stdout.write(_as_jsonl(rows, len(pools) > 1))
    elif sys.stdout.isatty():
        Console().print(_table(rows, len(pools) > 1))
    else:
        _write_lines(rows, len(pools) > 1)
    if output is not None and not to_stdout:
        _save(output, _as_jsonl(rows, len(pools) > 1))
        say(f"{len(rows)} votes written to {output}")


def show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A journal that `sharegen run` wrote.", parser=parse_path
        ),
    ],
    problem: Annotated[
        str, typer.Option("--problem", "-p", metavar="ID", help="The problem's id.")
    ],
    whole_prompt: Annotated[
        bool,
        typer.Option("--prompt", help="Show all of the prompt, examples and document included."),
    ] = False,
    recipe: RecipeOption = None,
    assignments: SetOption = None,
) -> None:
    """Show one problem: prompt, samples, answers, vote and gold answer.

    What a prompt has before the problem's own part is folded away unless --prompt is given.

    \b
    Example:
      sharegen show runs/gsm8k.jsonl --problem 17
    """
    journal = answers_by(recipe, assignments).of(one_job(file))
    try:
        records = select(journal.records(), problem)
    except DataError as error:
        raise DataError(f"{file}: {error}") from error
    try:
        text, own = _prompt(journal, records[0])
        prompt = ShownPrompt(text) if whole_prompt else ShownPrompt.of(text, own)
    except SharegenError as error:
        say(f"the prompt cannot be shown: {error}")
        prompt = None
    console = Console(highlight=False, soft_wrap=True)
    for line in describe(records, prompt, Stopped.of(journal)):
        if console.is_terminal:
            console.print(line)
        else:  # tabs and all, as the model wrote it
            print(Text.from_markup(line).plain)


def _prompt(journal: Pool, record: Record) -> tuple[str, str | None]:
    """The prompt that a record answers: as it was kept, else rendered again from its dataset.

    And what of it is the problem's own, where it is rendered again.
    """
    from sharegen.job.reordering import load_asked
    from sharegen.workload.configuration import Configuration
    from sharegen.workload.prompt import kept_prompt

    if record.prompt is not None:
        return str(kept_prompt(record.prompt)), None
    run = journal.run
    if run is None:
        raise JournalError(f"{run_file_path(journal.files[0])} is not there")
    problems = load_asked(Configuration.from_settings(run.settings)).problems
    mine = next((p for p in problems if p.id == record.problem_id), None)
    if mine is None:
        raise DataError(f"the dataset has no problem {record.problem_id!r} that can be asked")
    if record.prompt_hash not in (None, mine.prompt_hash):
        raise DataError("the dataset or the recipe's files have changed since it was asked")
    return str(mine.prompt), mine.prompt.own


def _say_notes(part: Pool, votes: list[Vote], at: int | None, stopped: Stopped | None) -> None:
    """What the reader of the votes should know, on stderr."""
    for path, lines in part.duplicates.items():
        if lines:
            say(
                f"{path}: {len(lines)} lines repeat an earlier sample and are left out"
                f" (first: line {lines[0]})"
            )
    short = sum(vote.samples < at for vote in votes) if at is not None else 0
    if short:
        say(f"{part.name}: {short} of {len(votes)} problems have fewer than {at} samples")
    if stopped is not None:
        say(f"{part.name}: {stopped.in_words()}")
    result = accuracy(votes, stopped)
    samples = sum(vote.samples for vote in votes)
    line = f"{part.name}: {len(votes)} problems, {samples} samples"
    if result is not None:
        line += f"; right: {result.sample:.1%} of the samples, {result.vote:.1%} of the votes"
        line += f" ({stopped.rule.named})" if stopped is not None else ""
    say(line)
    used = equality_used(pair for vote in votes for pair in vote.comparisons)
    if used is not None:
        say(f"{part.name}: {used}")


def _table(rows: list[Row], several: bool) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    if several:
        table.add_column("file", overflow="fold", style="dim")
    table.add_column("problem", overflow="fold")
    table.add_column("answer", overflow="fold")
    table.add_column("votes", justify="right")
    table.add_column("share", justify="right")
    with_rule = any(stopped is not None for *_, stopped in rows)
    if with_rule:
        table.add_column("stopped")
    with_gold = any(vote.gold is not None for _, vote, _ in rows)
    if with_gold:
        table.add_column("gold", overflow="fold")
        table.add_column("")
    for name, vote, stopped in rows:
        answer = "[dim]none[/]" if vote.answer is None else visible(vote.answer)
        cells = [visible(vote.problem_id), answer, f"{vote.votes}/{vote.cast}", f"{vote.share:.0%}"]
        if with_rule:
            cells.append("" if stopped is None else f"{_stop(vote, stopped)} of {stopped.samples}")
        if with_gold:
            mark = {True: "[green]✓[/]", False: "[red]✗[/]", None: ""}[vote.correct]
            cells += [visible(vote.gold or ""), mark]
        table.add_row(*([visible(name)] if several else []), *cells)
    return table


def _write_lines(rows: list[Row], several: bool) -> None:
    """Tab-separated, one line a problem after a line of names; a cell with a tab is quoted.

    What a terminal would obey is spelled: the lines may go through `less` to one.
    """
    lines = csv.writer(sys.stdout, dialect="excel-tab", lineterminator="\n")
    file = ["file"] if several else []
    rule = ["rule", "stopped"] if any(stopped is not None for *_, stopped in rows) else []
    lines.writerow([*file, "problem_id", "answer", "votes", "share", "correct", "gold", *rule])
    for name, vote, stopped in rows:
        correct = "" if vote.correct is None else str(vote.correct).lower()
        cells = [vote.problem_id, vote.answer, vote.votes, f"{vote.share:.4f}", correct, vote.gold]
        if stopped is not None:
            cells += [stopped.rule.named, _stop(vote, stopped)]
        row = [*([name] if several else []), *cells]
        lines.writerow([None if cell is None else printable(str(cell)) for cell in row])


def _stop(vote: Vote, stopped: Stopped) -> int | str:
    """After how many samples the problem of a vote was decided."""
    deciding = stopped.problems[vote.problem_id, vote.prompt_hash]
    return deciding.counted if deciding.is_decided else "not yet"


def _as_jsonl(rows: list[Row], several: bool) -> str:
    return "".join(
        json.dumps(({"file": name} if several else {}) | _object(vote, stopped)) + "\n"
        for name, vote, stopped in rows
    )


def _object(vote: Vote, stopped: Stopped | None) -> dict[str, Any]:
    if stopped is None:
        return vote.to_json()
    deciding = stopped.problems[vote.problem_id, vote.prompt_hash]
    rule = {"rule": str(stopped.rule), "exact": stopped.rule.is_exact}
    return vote.to_json() | rule | {"stopped": deciding.counted if deciding.is_decided else None}


def _save(path: Path, text: str) -> None:
    try:
        if path.exists() and not path.is_file():  # a pipe or a device is written to, not replaced
            path.write_text(text)
        else:
            replace_file(path, text.encode())
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written: {error.strerror}: choose another --output"
        ) from error
