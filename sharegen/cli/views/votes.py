"""The votes of journals, as a table, as lines, or as JSONL."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharegen.cli.telling import say
from sharegen.common.files import replace_file
from sharegen.common.printable import printable, visible
from sharegen.errors import DataError, UsageError
from sharegen.results.answers.equality import equality_used
from sharegen.results.journal.output import refuse_journal
from sharegen.results.journal.pool import Pool, pool
from sharegen.results.scoring.vote import Vote, tally
from sharegen.results.screen.accuracy import accuracy
from sharegen.results.stopping.stopped import Stopped, counted

if TYPE_CHECKING:
    from rich.table import Table

    from sharegen.job.answer_recipe import AnswerRecipe

Row = tuple[str, Vote, Stopped | None]
"""The journals that a vote was taken over, by name, the vote, and the rule that stopped them."""


def show_votes(
    files: Sequence[Path],
    by: AnswerRecipe,
    *,
    at: int | None,
    output: Path | None,
    pooled: bool,
    explain: str | None,
) -> None:
    """Print the vote of every problem, or save it, or explain one problem's answers.

    Args:
        files: journals; those of one job vote together.
        by: how answers are read.
        at: vote over so many samples of each problem.
        output: a file for JSONL; `-` is standard output.
        pooled: take journals that differ in the seed alone together.
        explain: the id of one problem, to show what was read in its samples.
    """
    if output is not None:
        refuse_journal(output)
    pools = [by.of(found) for found in pool(files, seeds=pooled)]
    if explain is not None:
        if at is not None or output is not None:
            raise UsageError("--explain shows one problem: leave out --at and --output")
        from sharegen.cli.views.explained import print_explained  # with what shows prompts

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
        from rich.console import Console

        Console().print(_table(rows, len(pools) > 1))
    else:
        _write_lines(rows, len(pools) > 1)
    if output is not None and not to_stdout:
        _save(output, _as_jsonl(rows, len(pools) > 1))
        say(f"{len(rows)} votes written to {output}")


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
    from rich.table import Table

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
    """Say after how many samples the problem of a vote was decided."""
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
