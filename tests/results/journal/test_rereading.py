"""Which answers are read anew: those that a process did not write itself, by the recipe of now."""

from __future__ import annotations

from pathlib import Path

from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.journal import Journal
from sharegen.results.journal.pool import Pool
from sharegen.results.journal.record import Record
from sharegen.results.journal.rereading import Rereading

NUMBER = Rereading({"extract": "number"}, {"p": "7"})


def draw(path: Path, sample: int, reading: Rereading = NUMBER) -> FoundJournal:
    """A journal, as the process knows it that has just drawn one more sample into it.

    The line has another answer than its text, by which it is told whether it was read anew.
    """
    found = FoundJournal(path)
    extent = {"answer": reading.section}
    with Journal.open(path, {}, extent=extent, reading=reading, found=found) as journal:
        journal.append(Record("p", sample, "h", "It is 7.", 4, "stop", answer="5", gold="7"))
    return found


def answers(found: FoundJournal, reading: Rereading = NUMBER) -> list[str | None]:
    return [record.answer for record in Pool([found]).read_by(reading).records()]


def test_lines_of_this_process_are_not_read_again(tmp_path: Path) -> None:
    assert answers(draw(tmp_path / "a.jsonl", 0)) == ["5"]


def test_lines_of_earlier_runs_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    draw(path, 0)
    assert answers(FoundJournal(path)) == ["7"]
    assert answers(draw(path, 1)) == ["7", "5"]


def test_another_recipe_reads_all_lines(tmp_path: Path) -> None:
    found = draw(tmp_path / "a.jsonl", 0)
    assert answers(found, Rereading({"extract": "text"})) != ["5"]
    assert answers(found, Rereading(None)) == [None]


def test_gold_answers_are_those_of_now(tmp_path: Path) -> None:
    found = draw(tmp_path / "a.jsonl", 0)
    [record] = Pool([found]).read_by(Rereading(NUMBER.section, {"p": "8"})).records()
    assert (record.answer, record.gold) == ("5", "8")
