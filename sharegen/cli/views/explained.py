"""`sharegen vote --explain ID`: what was read where, and by which rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from sharegen.common.printable import visible
from sharegen.errors import DataError, SharegenError
from sharegen.results.journal.pool import Pool
from sharegen.results.screen.explaining import excerpt, explain
from sharegen.results.screen.show import select


def print_explained(pools: Sequence[Pool], problem_id: str) -> None:
    """Explain the answers of one problem in every job that has it.

    Raises DataError where none has.
    """
    console = Console(highlight=False, soft_wrap=True)
    failure: DataError | None = None
    is_found = False
    for found in pools:
        try:
            records = select(found.records(), problem_id)
        except DataError as error:
            failure = DataError(f"{found.name}: {error}")
            continue
        is_found = True
        reader = next((each.reader for each in found.readings if each is not None), None)
        lines = (*explain(records, reader), *_gold(found, problem_id, records[0].gold))
        for line in lines:
            if console.is_terminal:
                console.print(line)
            else:
                print(Text.from_markup(line).plain)
    if not is_found and failure is not None:
        raise failure


def _gold(found: Pool, problem_id: str, known: str | None) -> Iterator[str]:
    """The gold answer, and where the dataset has it."""
    from sharegen.job.gold_reading import gold_of
    from sharegen.workload.configuration import Configuration

    heading = f"[bold]gold[/] [dim]·[/] {visible(known) if known is not None else 'not known'}"
    run = found.run
    if run is None:
        if known is not None:
            yield f"{heading} [dim]·[/] as the lines have it"
        return
    try:
        gold = gold_of(Configuration.from_settings(run.settings), problem_id)
    except SharegenError as error:
        yield f"{heading} [dim]·[/] the dataset cannot be read: {visible(str(error))}"
        return
    if gold is None:
        yield heading
    elif gold.found is not None:
        yield f"{heading} [dim]·[/] {visible(gold.found.rule)}"
        yield excerpt(gold.text or "", gold.found)
    else:
        yield f"{heading} [dim]·[/] {visible(gold.fault or 'all of what the row has')}"
