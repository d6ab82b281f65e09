"""Whether a mathematical answer is right: math-verify's opinion where it is installed."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterable
from functools import lru_cache

from sharegen.results.answer import normalise
from sharegen.results.record import Record

_SECONDS = 5

has_math_verify = importlib.util.find_spec("math_verify") is not None


@lru_cache(maxsize=100_000)
def is_right(answer: str, gold: str) -> bool:
    """Whether an answer equals the gold answer.

    Equal spellings are equal; of others math-verify decides, where it is installed
    (huggingface/Math-Verify; `pip install sharegen[math]`).
    """
    if normalise(answer) == normalise(gold):
        return True
    if not has_math_verify:
        return False
    from math_verify import parse, verify

    # its time limits are alarms, which only the main thread can set
    limit = _SECONDS if threading.current_thread() is threading.main_thread() else None
    wanted, given = (parse(f"${text}$", parsing_timeout=limit) for text in (gold, answer))
    return bool(verify(wanted, given, timeout_seconds=limit))


Ballots = tuple[list[str | None], dict[str, bool]]
"""A problem's answers by sample index, normalised, and whether each is right."""


def ballots(records: Iterable[Record]) -> list[Ballots]:
    """The votes of every problem with a gold answer, counted as `sharegen vote` counts them."""
    problems: dict[str, dict[int, Record]] = {}
    for record in records:
        if record.sample is not None and record.gold is not None:
            problems.setdefault(record.problem_id, {})[record.sample] = record
    found = []
    for samples in problems.values():
        answers: list[str | None] = []
        right: dict[str, bool] = {}
        for _, record in sorted(samples.items()):
            key = (normalise(record.answer) if record.answer is not None else "") or None
            answers.append(key)
            if key is not None and key not in right:
                assert record.answer is not None and record.gold is not None
                right[key] = is_right(record.answer, record.gold)
        found.append((answers, right))
    return found
