"""Accuracy of one sample against the vote's, and the problem that tells the story."""

from __future__ import annotations

from sharegen.results.journal.record import Record
from sharegen.results.scoring.vote import tally
from sharegen.results.screen.accuracy import Accuracy, accuracy, rescued


def problem(name: str, answers: str, gold: str | None) -> list[Record]:
    """One sample per letter; `-` is a sample without an answer."""
    return [
        Record(name, index, "h", f"text {index}", answer=None if a == "-" else a, gold=gold)
        for index, a in enumerate(answers)
    ]


def test_the_mean_over_samples_and_over_votes() -> None:
    records = problem("a", "1122", "2") + problem("b", "33-", "3") + problem("c", "9", None)
    assert accuracy(tally(records)) == Accuracy(problems=2, samples=7, sample=4 / 7, vote=0.5)


def test_without_gold_there_is_no_accuracy() -> None:
    assert accuracy(tally(problem("c", "9", None))) is None
    assert accuracy([]) is None


def test_the_rescue_is_the_clearest_of_those_where_most_samples_are_wrong() -> None:
    records = (
        problem("mostly right", "11112", "1")
        + problem("by a tie", "1-2--", "1")
        + problem("clear", "2131415161", "1")  # 5 of 10 is not mostly wrong
        + problem("clearer", "213141516--", "1")  # 5 of 11, next is 1
        + problem("close", "112233-", "1")
        + problem("lost", "2221", "1")
        + problem("unknown", "1123", None)
    )
    vote = rescued(tally(records))
    assert vote is not None and vote.problem_id == "clearer"
    assert rescued(tally(problem("lost", "2221", "1"))) is None
    assert rescued([]) is None
