"""Whether an answer is right, for every command alike: by value and spelling, then by math-verify.

Answers are *counted* by value and spelling alone (`answer.normalise`). Whether one *equals the gold
answer* is also asked of math-verify, where it is installed (huggingface/Math-Verify; the
extra `math`) and where neither is a plain number that the other could be told from at once.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import threading
from collections.abc import Iterable
from functools import lru_cache

from sharegen.common.extras import install
from sharegen.results.answers.normal import normalise

_SECONDS = 5
_LONGEST = 1_000  # characters; what is longer is no answer that anyone wrote
_PLAIN = re.compile(r"-?[0-9]+(\.[0-9]+)?")

has_math_verify = importlib.util.find_spec("math_verify") is not None


@lru_cache(maxsize=100_000)
def is_right(answer: str, gold: str) -> bool:
    """Whether an answer equals the gold answer."""
    if normalise(answer) == normalise(gold):
        return True
    if not has_math_verify or is_settled(answer, gold) or len(answer) > _LONGEST:
        return False
    return _verified(answer, gold)


def is_settled(answer: str, gold: str) -> bool:
    """Whether value and spelling alone say if they are equal: they are, or both are numbers.

    Most answers are numbers, and there are too many of them to ask a library about each.
    """
    given, wanted = normalise(answer), normalise(gold)
    return given == wanted or bool(_PLAIN.fullmatch(given) and _PLAIN.fullmatch(wanted))


def equality_used(pairs: Iterable[tuple[str, str]]) -> str | None:
    """How (answer, gold) pairs were compared, in words; None where value and spelling settle all.

    That is the one case in which math-verify, installed or not, changes nothing.
    """
    if all(is_settled(answer, gold) for answer, gold in pairs):
        return None
    if has_math_verify:
        return "answers are compared by value and spelling, then by math-verify"
    return (
        "answers are compared by value and spelling alone: math-verify is not installed "
        f"({install('math')})"
    )


def _verified(answer: str, gold: str) -> bool:
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it tells all that it gives up on
    # its time limits are alarms, which only the main thread can set
    limit = _SECONDS if threading.current_thread() is threading.main_thread() else None
    wanted, given = (parse(f"${text}$", parsing_timeout=limit) for text in (gold, answer))
    return bool(verify(wanted, given, timeout_seconds=limit))
