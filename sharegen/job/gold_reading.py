"""Gold answers as they are compared: read out of what the rows have, as completions are."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sharegen.common.log import log
from sharegen.results.answers.normal import normalise
from sharegen.results.answers.reader import AnswerReader, Extract
from sharegen.results.answers.reading import Reading
from sharegen.workload.configuration import Configuration
from sharegen.workload.gold import Gold, golds_of, unread_in_words
from sharegen.workload.items import items_of, read_split
from sharegen.workload.problem import Workload


def with_gold_read(workload: Workload, configuration: Configuration) -> Workload:
    """The workload with its gold answers as they are compared; one that cannot be read is None."""
    read = {name: _read(gold, configuration) for name, gold in workload.golds.items()}
    problems = [
        replace(problem, gold=read[problem.id].text) if problem.id in read else problem
        for problem in workload.problems
    ]
    return replace(workload, problems=problems, golds=read)


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
