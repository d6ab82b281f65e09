"""`--reorder`: prompts whose free fields, and rows, stand in the order that shares the most tokens.

Every row's prompt then depends on all rows that are asked, and on the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.job.gold_reading import with_gold_read
from sharegen.job.machine import tokenizer_of
from sharegen.workload.configuration import Configuration
from sharegen.workload.problem import Problem, Reordered, Workload, content_hash, load_workload
from sharegen.workload.prompt import token_ids, tokenise_each
from sharegen.workload.reorder import greedy_groups

Render = Callable[[Problem, Sequence[str]], Problem]
"""A problem with its free fields in another order."""


def load_asked(configuration: Configuration) -> Workload:
    """What a configuration asks, in the order in which it asks it."""
    return with_gold_read(load_unread(configuration), configuration)


def load_unread(configuration: Configuration) -> Workload:
    """The same, with the texts of gold answers as the rows have them."""
    if not configuration.reorder:
        return load_workload(configuration)

    def arrange(problems: Sequence[Problem], render: Render) -> Reordered:
        tokenizer = tokenizer_of(configuration)
        free, size = configuration.prompt.free, configuration.machine.block_size
        return reorder(problems, free, render, tokenizer, size)

    return load_workload(configuration, arrange)


def reorder(
    problems: Sequence[Problem],
    free: Sequence[str],
    render: Render,
    tokenizer: Any,
    block_size: int,
) -> Reordered:
    """The problems in the order that shares the most tokens, which may be the given one.

    free: names of the fields that may move. An order is taken only where fewer tokens are computed
    than in the given one, and no fewer shared.
    """
    columns, lengths = _table(problems, free, tokenizer)
    moved = [
        render(problems[placed.row], [free[field] for field in placed.fields])
        for placed in greedy_groups(columns, lengths)
    ]
    given, found = (_tokens(each, tokenizer, block_size) for each in (problems, moved))
    (asked, computed), (asked_then, computed_then) = given, found
    if computed_then >= computed or asked_then - computed_then < asked - computed:
        return Reordered(list(problems), computed, computed, _fingerprint(problems))
    return Reordered(moved, computed, computed_then, _fingerprint(moved))


def saved_by_order(workload: Workload) -> int | None:
    """Prompt tokens that the order saves; None where it is the given one unasked."""
    found = workload.reordered
    return None if found is None else found.given - found.computed


def _table(
    problems: Sequence[Problem], free: Sequence[str], tokenizer: Any
) -> tuple[list[list[int]], list[list[int]]]:
    """Tabulate for each free field which value each problem has, and how many tokens each value
    takes.
    """
    columns: list[list[int]] = []
    lengths: list[list[int]] = []
    for name in free:
        places: dict[str, int] = {}
        texts = (f"{name}: {problem.fields[name]}\n" for problem in problems)
        columns.append([places.setdefault(text, len(places)) for text in texts])
        lengths.append([len(ids) for ids in token_ids(list(places), tokenizer, begin=False)])
    return columns, lengths


def _tokens(problems: Sequence[Problem], tokenizer: Any, block_size: int) -> tuple[int, int]:
    """How many tokens the problems' prompts have in all, and how many of them are computed."""
    found = tokenise_each([problem.prompt for problem in problems], tokenizer)
    prompts = [ids for ids in found if not isinstance(ids, Exception) and ids]
    return sum(map(len, prompts)), PrefixTree.build(prompts, block_size).num_tokens


def _fingerprint(problems: Sequence[Problem]) -> str:
    """A hash of which prompt each row has, in whatever order the rows are asked."""
    return content_hash(sorted((problem.id, problem.prompt_hash) for problem in problems))
