"""One problem of a journal, as it is read by a person."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from sharegen.cli.telling import say
from sharegen.errors import DataError, JournalError, SharegenError
from sharegen.results.journal.pool import Pool, one_job
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import run_file_path
from sharegen.results.screen.show import ShownPrompt, describe, select
from sharegen.results.stopping.stopped import Stopped

if TYPE_CHECKING:
    from sharegen.job.answer_recipe import AnswerRecipe


def show_problem(file: Path, problem: str, by: AnswerRecipe, whole_prompt: bool) -> None:
    """Print prompt, samples, answers, vote and gold answer of one problem.

    Args:
        file: a journal.
        problem: the problem's id.
        by: how answers are read.
        whole_prompt: show what the prompt has before the problem's own part, too.
    """
    journal = by.of(one_job(file))
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
