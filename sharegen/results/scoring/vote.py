"""The majority vote over a problem's samples: self-consistency (Wang et al. 2022, section 2).

Answers are normalised before they are counted. A sample without an answer does not vote. A tie
goes to the answer that appears first by sample index, so a vote never depends on the order in
which samples finished. Whether an answer is right is for `equality` to say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sharegen.results.answers.equality import is_right
from sharegen.results.answers.normal import normalise
from sharegen.results.journal.record import Record


@dataclass(frozen=True)
class Vote:
    """How the samples of one problem voted.

    answer: the winner, normalised; None when no sample had an answer.
    votes: for the winner; share: of all votes cast, 0 when there are none.
    correct: whether the winner equals the gold answer; None where no gold answer is known.
    gold: as the dataset has it.
    answers: of all samples by sample index, normalised; None for a sample without one.
    counts: votes for every answer, the winner first.
    right: whether each answer equals the gold answer; empty where none is known.
    """

    problem_id: str
    answer: str | None
    votes: int
    share: float
    correct: bool | None
    gold: str | None
    answers: tuple[str | None, ...]
    counts: dict[str, int] = field(default_factory=dict)
    right: dict[str, bool] = field(default_factory=dict)
    prompt_hash: str | None = field(default=None, compare=False)

    @property
    def samples(self) -> int:
        """How many samples there were, with and without an answer."""
        return len(self.answers)

    @property
    def cast(self) -> int:
        """Votes cast: samples that had an answer."""
        return sum(self.counts.values())

    @property
    def right_samples(self) -> int:
        """The number of samples whose own answer equals the gold answer."""
        return sum(votes for answer, votes in self.counts.items() if self.right.get(answer))

    def among(self, first: int) -> tuple[int, int]:
        """How many samples there are among the first `first`, and how many of them are right."""
        answers = self.answers[:first]
        return len(answers), sum(a is not None and self.right.get(a, False) for a in answers)

    @property
    def comparisons(self) -> list[tuple[str, str]]:
        """Every answer with the gold answer that it was compared with."""
        return [(answer, self.gold) for answer in self.counts if self.gold is not None]

    def to_json(self) -> dict[str, Any]:
        """The vote as `sharegen vote --output` writes it; `correct` only where gold is known."""
        fields: dict[str, Any] = {
            "problem_id": self.problem_id,
            "answer": self.answer,
            "votes": self.votes,
            "share": round(self.share, 6),
        }
        return fields if self.correct is None else fields | {"correct": self.correct}


def tally(records: Iterable[Record], at: int | None = None) -> list[Vote]:
    """One vote per problem, by problem id (digits in it by value); bad rows are left out.

    at: only samples with an index below it vote: the first `at` samples. A problem that has
        fewer votes with what it has.
    """
    problems: dict[tuple[str, str | None], _Ballots] = {}
    for record in records:
        if record.sample is None or (at is not None and record.sample >= at):
            continue
        ballots = problems.setdefault((record.problem_id, record.prompt_hash), _Ballots())
        ballots.answers[record.sample] = record.answer
        ballots.gold = record.gold if ballots.gold is None else ballots.gold
    votes = [_count(*problem, ballots) for problem, ballots in problems.items()]
    return sorted(votes, key=lambda vote: natural_order(vote.problem_id))


def natural_order(problem_id: str) -> list[tuple[int, str]]:
    """A sort key that puts `test/9` before `test/10`."""
    parts = re.split(r"([0-9]+)", problem_id)  # text and digits take turns
    parts[1::2] = (digits.lstrip("0") for digits in parts[1::2])
    return [(len(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


@dataclass
class _Ballots:
    """The votes of one problem. answers: as extracted, by sample index; None for a sample without
    one.
    """

    answers: dict[int, str | None] = field(default_factory=dict)
    gold: str | None = None


def _count(problem_id: str, prompt_hash: str | None, ballots: _Ballots) -> Vote:
    gold = ballots.gold
    answers: list[str | None] = []
    right: dict[str, bool] = {}
    for _, answer in sorted(ballots.answers.items(), key=lambda item: item[0]):
        key = (normalise(answer) or None) if answer is not None else None
        answers.append(key)
        if key is not None and gold is not None and key not in right:
            assert answer is not None
            right[key] = is_right(answer, gold)
    # most_common keeps the order of first appearance among equals
    counts = dict(Counter(answer for answer in answers if answer is not None).most_common())
    winner, votes = next(iter(counts.items()), (None, 0))
    return Vote(
        problem_id=problem_id,
        answer=winner,
        votes=votes,
        share=votes / sum(counts.values()) if counts else 0.0,
        correct=None if gold is None else winner is not None and right[winner],
        gold=gold,
        answers=tuple(answers),
        counts=counts,
        right=right,
        prompt_hash=prompt_hash,
    )
