"""Gold answers as they are compared: read out of what the rows have, as completions are."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

from sharegen.common.cores import available_cores
from sharegen.common.log import log
from sharegen.results.answers.normal import normalise
from sharegen.results.answers.reader import AnswerReader, Extract
from sharegen.results.answers.reading import Reading
from sharegen.workload.configuration import Configuration
from sharegen.workload.gold import Gold, golds_of, unread_in_words
from sharegen.workload.items import items_of, read_split
from sharegen.workload.problem import Workload

_MANY = 5_000  # gold answers, which take a second to read


def with_gold_read(workload: Workload, configuration: Configuration) -> Workload:
    """The workload with its gold answers as they are compared; one that cannot be read is None.

    Of many a copy of this process reads half.
    """
    golds = workload.golds
    half = len(golds) // 2 if len(golds) >= _MANY and _may_be_copied() else 0
    given = dict(islice(golds.items(), half)), dict(islice(golds.items(), half, None))
    with _copied(given[0], configuration) as copy:
        own = _read_all(given[1], configuration)
        read = None if copy is None else copy.read()
    if read is None:
        read = _read_all(given[0], configuration)
    read |= own
    problems = [
        replace(problem, gold=read[problem.id].text) if problem.id in read else problem
        for problem in workload.problems
    ]
    return replace(workload, problems=problems, golds=read)


@contextmanager
def gold_read_beside(
    workload: Workload, configuration: Configuration
) -> Iterator[Callable[[Workload], Workload]]:
    """Let a copy of this process read many gold answers, while this one goes on inside.

    Gives what puts into a workload which of them cannot be read. The others may stand there as the
    rows have them: it is for who asks whether they are known, not what they are.
    """
    is_worth_it = len(workload.golds) >= _MANY and _may_be_copied()
    golds = workload.golds if is_worth_it else {}
    with _copied(golds, configuration, known=False) as copy:

        def settled(workload: Workload) -> Workload:
            unread = None if copy is None else copy.read()
            if unread is None:
                return with_gold_read(workload, configuration)
            problems = [
                replace(problem, gold=None) if problem.id in unread else problem
                for problem in workload.problems
            ]
            return replace(workload, problems=problems, golds={**workload.golds, **unread})

        yield settled


def _read_all(golds: Mapping[str, Gold], configuration: Configuration) -> dict[str, Gold]:
    return {name: _read(gold, configuration) for name, gold in golds.items()}


def _may_be_copied() -> bool:
    """Whether a copy of this process is whole: it has no threads, of its own or of a library."""
    is_bare = threading.active_count() == 1 and "torch" not in sys.modules
    return is_bare and sys.platform == "linux" and available_cores() > 1


class _Copy:
    """A copy of this process that reads gold answers. End it.

    known: whether it tells those that can be read, too.
    """

    def __init__(
        self, golds: Mapping[str, Gold], configuration: Configuration, known: bool
    ) -> None:
        reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os._exit(_tell(golds, configuration, known, writer))
        os.close(writer)
        self._answer = os.fdopen(reader, "rb")

    def read(self) -> dict[str, Gold] | None:
        """What it tells; None where the copy has failed."""
        try:
            return dict(pickle.load(self._answer))
        except (EOFError, pickle.UnpicklingError):
            return None

    def end(self) -> None:
        self._answer.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


@contextmanager
def _copied(
    golds: Mapping[str, Gold], configuration: Configuration, known: bool = True
) -> Iterator[_Copy | None]:
    """A copy of this process that reads these while this one goes on inside; None for none."""
    copy = _Copy(golds, configuration, known) if golds else None
    try:
        yield copy
    finally:
        if copy is not None:
            copy.end()


def _tell(golds: Mapping[str, Gold], configuration: Configuration, known: bool, writer: int) -> int:
    """What the copy does; returns its exit code. Whatever goes wrong is found by who reads anew."""
    try:
        read = _read_all(golds, configuration)
        with os.fdopen(writer, "wb") as answer:
            told = {name: gold for name, gold in read.items() if known or gold.text is None}
            pickle.dump(told, answer)
    except BaseException:
        return 1
    return 0


def gold_answers(configuration: Configuration) -> dict[str, str | None]:
    """The gold answers of all rows, by problem id: no prompt is made. Logs what is not known.

    Raises DataError and UsageError where the rows cannot be read.
    """
    golds = {name: _read(gold, configuration) for name, gold in _golds(configuration).items()}
    said = unread_in_words(golds.values())
    if said is not None:
        log(said)
    return {name: gold.text for name, gold in golds.items()}


def _golds(configuration: Configuration) -> dict[str, Gold]:
    dataset = configuration.dataset
    rows = read_split(dataset, dataset.split)
    items, _ = items_of(rows.rows, dataset, dataset.where, None)
    return golds_of(items, configuration)


@dataclass(frozen=True)
class FoundGold:
    """Where a gold answer stands.

    text: what the recipe finds in the row; found: what is read of that, None where it is all of it
    or cannot be read; fault: why the row has none.
    """

    text: str | None
    found: Reading | None
    fault: str | None


def gold_of(configuration: Configuration, problem_id: str) -> FoundGold | None:
    """The gold answer of one row; None where there is no such row, or the recipe asks for none.

    Raises DataError and UsageError where the rows cannot be read.
    """
    gold = _golds(configuration).get(problem_id)
    if gold is None:
        return None
    kind = _kind_of(configuration)
    found = None if gold.text is None or kind is None else AnswerReader(kind).read(gold.text)
    return FoundGold(gold.text, found, _read(gold, configuration).fault)


def _kind_of(configuration: Configuration) -> Extract | None:
    answer = configuration.answer
    assert answer is not None and answer.gold is not None
    return answer.gold.extract or answer.extract


def _read(gold: Gold, configuration: Configuration) -> Gold:
    """A gold answer as the recipe's extractor reads it.

    That is `answer.gold.extract`, or else what reads the completions: then a text without a box is
    an answer as it stands, and so is any where the answers are texts.
    """
    answer = configuration.answer
    assert answer is not None and answer.gold is not None
    kind = _kind_of(configuration)
    if gold.text is None or kind is None or (kind == "text" and answer.gold.extract is None):
        return gold
    if kind == "number" and _NUMBER.fullmatch(normalise(gold.text)):
        return gold
    found = AnswerReader(kind).read(gold.text)
    if found is not None:
        return replace(gold, text=found.answer)
    if kind == "boxed" and answer.gold.extract is None:
        return gold
    named = "answer.gold.extract" if answer.gold.extract else "answer.extract"
    return replace(
        gold,
        text=None,
        fault=f"its gold answer {gold.text[-_SHOWN:]!r} cannot be read ({named}: {kind})",
    )


_NUMBER = re.compile(r"-?[0-9]+([./][0-9]+)?")
_SHOWN = 80  # characters of a gold answer that cannot be read
