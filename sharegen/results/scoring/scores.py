"""The verdicts of `sharegen score`, read from the file that it keeps of a journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharegen.common import json_values
from sharegen.common.json_values import JsonError
from sharegen.errors import DataError
from sharegen.results.scoring.score_file import hash_of, scores_path

_UNSCORABLE = "unscorable"

SampleKey = tuple[str, int]
"""Problem id and sample index."""


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """One line of FILE.jsonl.scores.jsonl.

    result: passed, or why not; tests_passed: how many of the problem's tests, of tests_total;
    message: the compiler's. difficulty: only where the dataset has one.
    """

    result: str
    passed: bool
    tests_passed: int | None
    difficulty: str | None
    tests_total: int | None = None
    message: str | None = None

    @property
    def verdict(self) -> bool | None:
        """Right or wrong; None for a sample that no test can judge."""
        return None if self.result == _UNSCORABLE else self.passed


def read_scores(
    journal: Path, samples: Mapping[SampleKey, str]
) -> dict[SampleKey, ScoreLine] | None:
    """The scores of a journal that holds `samples`; None where it has not been scored.

    samples: the text of each; a score of another text is none of it.

    Raises DataError, naming file and line, for a line that is no score and for the score of a
    sample that the journal does not hold.
    """
    path = scores_path(journal)
    scores: dict[SampleKey, ScoreLine] = {}
    try:
        for where, fields in _lines(path):
            key = (fields["problem_id"], fields["sample"])
            if key not in samples:
                raise DataError(
                    f"{where}: scores sample {key[1]} of problem {key[0]!r}, which {journal} does"
                    f" not hold: these are another journal's scores; remove {path.name} and score"
                    " again"
                )
            if fields.get("completion") not in (None, hash_of(samples[key])):
                continue
            level = fields.get("difficulty")
            score = ScoreLine(
                fields["result"],
                fields["passed"],
                fields.get("tests_passed"),
                str(level) if level is not None else None,
                fields.get("tests_total"),
                fields.get("message"),
            )
            scores[key] = score  # the last one: its tests are the latest
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    return scores or None


_TYPES: dict[str, type] = {"problem_id": str, "sample": int, "passed": bool, "result": str}


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each score with the place to name in an error; a last line that was cut short is left
    out.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}, line {number}"
            try:
                fields = json_values.parse(line)
            except JsonError as error:
                if not line.endswith(b"\n"):
                    return
                raise DataError(
                    f"{where}: is not JSON: remove the line, then score again"
                ) from error
            if not isinstance(fields, dict):
                raise DataError(f"{where}: is not a score: remove the file, then score again")
            for name, kind in _TYPES.items():
                if not isinstance(fields.get(name), kind):
                    raise DataError(
                        f"{where}: has no valid `{name}`: remove the file, then score again"
                    )
            yield where, fields
