"""The nouns of judging programs: what a problem's tests are, whatever dataset they came from.

They travel from the dataset's schema (`workload/code.py`) to the scorer
(`results/scoring/score.py`), which know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ScriptTests:
    """The program is a script: for each input, the output that it must write."""

    inputs: Sequence[str]
    outputs: Sequence[str]


@dataclass(frozen=True)
class CallTests:
    """The program defines a function (or a class `Solution` with that method).

    arguments: of each call, as JSON data; results: what each must return, as JSON data, on its own
        or, unless is_exact, as the only item of a list.
    """

    function: str
    arguments: Sequence[Sequence[Any]]
    results: Sequence[Any]
    is_exact: bool = False


@dataclass(frozen=True)
class CheckTests:
    """The tests are code that calls the program's functions.

    checks: each is one test, which passes when it runs to its end.
    functions: names in it that are the program's; setup: code for all the other names.
    """

    checks: Sequence[str]
    functions: Sequence[str]
    setup: str


@dataclass(frozen=True)
class NoTests:
    """There is nothing to judge a program by, for this reason."""

    reason: str


ProgramTests = ScriptTests | CallTests | CheckTests | NoTests


@dataclass(frozen=True)
class ProgramProblem:
    """How to judge the programs for one problem.

    stub: what the model was to continue; a completion is a program only behind it.
    prelude: names that a program may use without importing them.
    difficulty: where the dataset has one.
    """

    tests: ProgramTests
    stub: str = ""
    prelude: str = ""
    difficulty: str | None = None

    def program(self, completion: str) -> str:
        """The whole program that a completion of the prompt makes."""
        return self.stub + completion
