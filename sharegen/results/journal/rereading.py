"""Answers read anew: from what the samples say, by the recipe as it is now.

A line of a journal holds the answer that was read when its sample was drawn, for scripts that vote.
Nothing in sharegen counts on it: a recipe whose answer pattern was wrong costs no samples, as with
inspect_ai's `score`. What the recipe says now stands in the run.json, as the last run left it, or
is given to `vote`, `score` and `report`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sharegen.results.answers.reader import AnswerReader
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile

_MOST, _CHARACTERS = 256, 2**20  # completions that are read at once, and characters of them


@dataclass(frozen=True)
class Rereading:
    """How the answers of a journal are read.

    section: `answer` of the recipe, None for one that looks for no answers. golds: by problem id as
        the journal has it, gold answers that are others than its lines have.
    """

    section: Mapping[str, Any] | None
    golds: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RunFile | None) -> Rereading | None:
        """What a run.json says; None where it says nothing, and the lines are all that there is."""
        if run is None or "answer" not in run.extent:
            return None
        return cls(run.extent["answer"], run.answers.get("golds") or {})

    @property
    def hash(self) -> str:
        """What the recipe's section is known by."""
        return section_hash(self.section)

    @property
    def reader(self) -> AnswerReader | None:
        """What reads the answers; None where the recipe looks for none."""
        if self.section is None:
            return None
        patterns = tuple(self.section.get("patterns") or ())
        match: Literal["first", "last"]
        match = "first" if self.section.get("match") == "first" else "last"
        return AnswerReader(self.section.get("extract"), patterns, match)

    def shown(self, run: RunFile) -> RunFile:
        """The run.json as it reads with this, for who shows it."""
        answers = {"hash": self.hash}
        return replace(run, extent=run.extent | {"answer": self.section}, answers=answers)

    def noted(self, run: RunFile, earlier: RunFile | None, on_record: Golds) -> RunFile:
        """The run.json with this rereading in the place of an earlier one.

        earlier: what was recorded before. Gold answers of problems that are not asked stay as they
            were; if they were looked for elsewhere, that is noted (`stale`).
        """
        before = {} if earlier is None else earlier.answers
        merged = {**(before.get("golds") or {}), **self.golds}
        golds = {name: gold for name, gold in merged.items() if on_record.differs(name, gold)}
        answers: dict[str, Any] = {"golds": golds} if golds else {}
        is_other = earlier is not None and _gold_places(earlier) != _gold_places(self.shown(run))
        if (is_other or before.get("stale")) and not on_record.names <= self.golds.keys():
            answers["stale"] = True
        shown = self.shown(run)
        return replace(shown, answers=shown.answers | answers)

    def read(
        self, records: Iterable[Record], is_read: Callable[[], bool] | None = None
    ) -> Iterator[tuple[Record, Record]]:
        """Yield each record with itself as it is read now.

        is_read: whether the answer of the record that came last was read so already.
        """
        for batch in _batches(records, is_read):
            unread = [record for record, is_known in batch if record.is_drawn and not is_known]
            answers = iter(self._answers(unread))
            for record, is_known in batch:
                answer = record.answer
                if not is_known:
                    answer = next(answers) if record.is_drawn else None
                yield record, self._now(record, answer)

    def _now(self, record: Record, answer: str | None) -> Record:
        """Return the record with this answer and today's gold one; most are as they were."""
        gold = self.golds.get(record.problem_id, record.gold)
        if not record.is_sample or (answer == record.answer and gold == record.gold):
            return record
        return replace(record, answer=answer, gold=gold)

    def _answers(self, records: Sequence[Record]) -> list[str | None]:
        reader = self.reader
        if reader is None:
            return [None] * len(records)
        texts = [(each.completion, each.finish_reason) for each in records]
        distinct = list(dict.fromkeys(texts))  # samples of an easy problem are often alike
        found = dict(zip(distinct, reader.read_each(distinct), strict=True))
        return [None if (reading := found[text]) is None else reading.answer for text in texts]


def readings_of(runs: Sequence[RunFile | None]) -> list[Rereading | None]:
    """How the answers in the journals of one job are read: all as the latest of their runs says."""
    found = [Rereading.of(run) for run in runs]
    dated = [(_date(run), reading) for run, reading in zip(runs, found, strict=True) if reading]
    if not dated:
        return found
    section = max(dated, key=lambda each: each[0])[1].section
    return [reading and replace(reading, section=section) for reading in found]


def golds_differ(runs: Sequence[RunFile | None]) -> bool:
    """Whether lines of one job have gold answers that were looked for in different ways."""
    known = [run for run in runs if run is not None and "answer" in run.extent]
    places = {section_hash(_gold_places(run)) for run in known}
    return len(places) > 1 or any(run.answers.get("stale") for run in known)


def _gold_places(run: RunFile) -> dict[str, Any]:
    """Where gold answers are looked for, and what reads them."""
    section = run.extent.get("answer") or {}
    dataset = run.settings.get("dataset") or {}
    return {"fields": dataset.get("fields"), **{k: section.get(k) for k in ("gold", "extract")}}


def _date(run: RunFile | None) -> str:
    return str(run.environment.get("date", "")) if run is not None else ""


class Others:
    """What is read otherwise now than the lines of a journal have it."""

    def __init__(self) -> None:
        self._samples = self._answers = 0
        self._golds: set[str] = set()

    @property
    def are_any(self) -> bool:
        return self._answers > 0 or bool(self._golds)

    def noted(self, read: Iterable[tuple[Record, Record]]) -> Iterator[Record]:
        """The records as they are read now, counted."""
        for before, now in read:
            self._samples += now.is_sample
            self._answers += before.answer != now.answer
            if before.gold != now.gold:
                self._golds.add(now.problem_id)
            yield now

    def in_words(self) -> str:
        """How many they are, in a line."""
        said = "answers are read anew, by the recipe as it is now: "
        said += f"{self._answers:,} of {self._samples:,} samples"
        if self._golds:
            problems = "1 problem" if len(self._golds) == 1 else f"{len(self._golds):,} problems"
            said += f", and the gold answers of {problems},"
        return f"{said} are read otherwise than their lines have them"


class Golds:
    """The gold answers in a journal's lines, by problem id."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}
        self._mixed: set[str] = set()  # problems of which the lines have several

    def note(self, record: Record) -> None:
        """Take the gold answer in a sample's line."""
        if self._known.setdefault(record.problem_id, record.gold) != record.gold:
            self._mixed.add(record.problem_id)

    @property
    def names(self) -> AbstractSet[str]:
        """The problems that there are."""
        return self._known.keys()

    def differs(self, problem_id: str, gold: str | None) -> bool:
        """Whether a line of the problem has another one; False where it has no lines."""
        if problem_id not in self._known:
            return False
        return problem_id in self._mixed or self._known[problem_id] != gold


def section_hash(section: Mapping[str, Any] | None) -> str:
    """What an `answer` section is known by, whatever the order of its keys."""
    text = json.dumps(section, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _batches(
    records: Iterable[Record], is_read: Callable[[], bool] | None
) -> Iterator[list[tuple[Record, bool]]]:
    """Records that are read at once, each with whether its answer needs no reading."""
    batch: list[tuple[Record, bool]] = []
    size = 0
    for record in records:
        batch.append((record, is_read is not None and is_read()))
        size += len(record.completion)
        if len(batch) == _MOST or size > _CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
