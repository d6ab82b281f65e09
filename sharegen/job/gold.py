"""Gold answers as they are compared: read out of what the rows have, as completions are."""

from __future__ import annotations

from dataclasses import replace

from sharegen.common.remarks import remark
from sharegen.results.answers.reader import Reader
from sharegen.workload.configuration import Configuration
from sharegen.workload.problem import Workload


def with_gold_read(workload: Workload, configuration: Configuration) -> Workload:
    """The workload with its gold answers read by `answer.gold.extract`, if the recipe has one.

    One that cannot be read is not known, and is named with its row.
    """
    gold = configuration.answer.gold if configuration.answer else None
    if gold is None or gold.extract is None:
        return workload
    reader = Reader(gold.extract)
    problems = []
    for problem in workload.problems:
        found = None if problem.gold is None else reader.read(problem.gold)
        if found is None and problem.gold is not None:
            remark(
                f"problem {problem.id}: its gold answer {problem.gold[-80:]!r} cannot be read "
                f"(answer.gold.extract: {gold.extract}): it is not known"
            )
        problems.append(replace(problem, gold=None if found is None else found.answer))
    return replace(workload, problems=problems)
