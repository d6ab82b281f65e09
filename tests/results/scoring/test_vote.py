"""The vote: counted after normalising, ties by sample index, the same in any order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharegen.results.answers.normal import normalise
from sharegen.results.journal.record import Record
from sharegen.results.scoring.vote import Vote, natural_order, tally


def samples(
    *answers: str | None, problem: str = "p", gold: str | None = None, prompt: str = "h"
) -> list[Record]:
    return [
        Record(problem, index, prompt, "text", answer=answer, gold=gold)
        for index, answer in enumerate(answers)
    ]


def test_spellings_of_one_answer_vote_together() -> None:
    (vote,) = tally(samples("20", "18", "$18.00", "20", "18.", gold="18.0"))
    answers = ("20", "18", "18", "20", "18")
    counts, right = {"18": 3, "20": 2}, {"18": True, "20": False}
    assert vote == Vote("p", "18", 3, 0.6, True, "18.0", answers, counts, right)
    assert list(vote.counts) == ["18", "20"]
    assert (vote.samples, vote.cast, vote.right_samples) == (5, 5, 3)


def test_samples_without_an_answer_do_not_vote() -> None:
    (vote,) = tally(samples(None, "7", None, " . ", None, gold="7"))
    assert (vote.answer, vote.votes, vote.share, vote.samples, vote.cast) == ("7", 1, 1.0, 5, 1)


def test_without_any_answer_there_is_no_winner() -> None:
    (vote,) = tally(samples(None, None, gold="7"))
    assert vote == Vote("p", None, 0, 0.0, False, "7", (None, None))
    assert vote.right_samples == 0
    (vote,) = tally(samples(None))
    assert vote.correct is None


def test_a_tie_goes_to_the_answer_that_appears_first_by_sample_index() -> None:
    records = samples("9", "8", "7", "7", "8")
    for _ in range(20):
        random.shuffle(records)  # samples finish in any order
        (vote,) = tally(records)
        assert vote.answer == "8" and list(vote.counts.items()) == [("8", 2), ("7", 2), ("9", 1)]


def test_at_k_only_the_first_samples_vote() -> None:
    records = samples("1", "2", "2", "1", "1")
    answers = [tally(records, at=k)[0].answer for k in range(1, 6)]
    assert answers == ["1", "1", "2", "1", "1"]
    assert tally(records, at=2)[0].samples == 2
    assert tally(records, at=99) == tally(records)
    gap = [record for record in records if record.sample != 1]  # not finished yet
    assert tally(gap, at=2)[0].samples == 1


def test_bad_rows_are_left_out() -> None:
    bad = Record("q", None, None, error="prompt too long")
    assert [vote.problem_id for vote in tally([bad, *samples("1")])] == ["p"]
    assert tally([bad]) == [] and tally([]) == []


def test_two_prompts_under_one_id_vote_apart() -> None:
    records = samples("1", prompt="one") + samples("2", "2", prompt="two")
    assert [vote.answer for vote in tally(records)] == ["1", "2"]


def test_problems_come_in_the_order_of_their_numbers() -> None:
    ids = ["test/10", "test/9", "b", "test/09", "10", "9", "", "test", "1" * 5000]
    expected = ["", "9", "10", "1" * 5000, "b", "test", "test/9", "test/09", "test/10"]
    records = [one for problem in ids for one in samples("1", problem=problem)]
    assert [vote.problem_id for vote in tally(records)] == expected
    assert sorted(["a10b", "a9c", "a9b"], key=natural_order) == ["a9b", "a9c", "a10b"]


@pytest.mark.parametrize("gold", [None, "1"])
def test_json_says_correct_only_where_gold_is_known(gold: str | None) -> None:
    fields = tally(samples("1", "1", "2", gold=gold))[0].to_json()
    expected = {"problem_id": "p", "answer": "1", "votes": 2, "share": 0.666667}
    assert fields == (expected if gold is None else expected | {"correct": True})


answers = st.lists(st.sampled_from(["1", "1.0", "2", "$2", "x", "X.", "", None]), max_size=12)


@given(st.dictionaries(st.text(max_size=3), answers, max_size=4), st.randoms(), st.integers(1, 13))
def test_the_winner_is_the_most_frequent_then_the_earliest(
    problems: dict[str, list[str | None]], rng: random.Random, at: int
) -> None:
    records = [one for name, given in problems.items() for one in samples(*given, problem=name)]
    rng.shuffle(records)
    votes = {vote.problem_id: vote for vote in tally(records, at)}
    assert set(votes) == {name for name, given in problems.items() if given}
    for name, vote in votes.items():
        cast = [n for n in (normalise(a) for a in problems[name][:at] if a is not None) if n]
        best = max((cast.count(answer) for answer in cast), default=0)
        assert vote.votes == best
        assert vote.answer == next((a for a in cast if cast.count(a) == best), None)
        assert vote.counts == {answer: cast.count(answer) for answer in cast}
        assert list(vote.counts)[:1] == ([vote.answer] if cast else [])
