"""Rules read samples in index order; what the exact one decides is the full vote, always."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharegen.common.stop_rule import StopRule
from sharegen.results.journal.record import Record
from sharegen.results.scoring.vote import tally
from sharegen.results.stopping.deciding import Deciding, Standing, least

ANSWERS = st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=60)


def deciding(text: str, answers: list[str | None], samples: int | None = None) -> Deciding:
    found = Deciding(StopRule.parse(text), samples or len(answers))
    for index, answer in enumerate(answers):
        found.note(index, answer, answer == "a")
    return found


def winner(answers: list[str | None]) -> str | None:
    """By the vote itself."""
    [vote] = tally(Record("p", i, "h", "text", answer=a) for i, a in enumerate(answers))
    return vote.answer


@given(ANSWERS)
def test_the_winner_decided_early_is_the_full_votes(answers: list[str | None]) -> None:
    found = deciding("decided", answers)
    assert found.is_decided and found.standing.leader == winner(answers)
    assert winner(answers[: found.counted]) == winner(answers)


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, pytest.param(6, marks=pytest.mark.slow)])
def test_decided_is_neither_too_early_nor_too_late(samples: int) -> None:
    """By enumeration: decided where all ways to go on have one winner, and where no other is."""
    alphabet = ["a", "b", None]
    for read in range(samples + 1):
        for prefix in product(alphabet, repeat=read):
            ends = product([*alphabet, "c"], repeat=samples - read)
            winners = {winner([*prefix, *end]) for end in ends}
            found = deciding("decided", list(prefix), samples)
            was_before = found.counted < read
            assert (found.is_decided or was_before) == (len(winners) == 1), (prefix, samples)


@pytest.mark.parametrize("text", ["decided", "confident=0.8", "window=2", "window=3", "right=2"])
def test_fewer_than_the_least_never_suffice(text: str) -> None:
    """By enumeration: no way of going on decides earlier, and one decides there."""
    rule, samples, alphabet = StopRule.parse(text), 7, ["a", "b", None]
    for read in range(5):
        for prefix in product(alphabet, repeat=read):
            start = deciding(text, list(prefix), samples)
            if start.is_decided:
                continue
            lengths = []
            for end in product([*alphabet, "c"], repeat=min(4, samples - read)):
                whole = deciding(text, [*prefix, *end], samples)
                lengths.append(whole.counted - read if whole.is_decided else math.inf)
            shortest, want = min(lengths), least(rule, samples, start.standing)
            assert shortest == want if want <= 4 else shortest == math.inf, (prefix, text)


@given(ANSWERS, st.sampled_from(["decided", "confident", "window=3", "right=2"]), st.randoms())
def test_the_order_of_finishing_does_not_matter(answers, text, rng) -> None:  # type: ignore[no-untyped-def]
    expected = deciding(text, answers)
    found = Deciding(StopRule.parse(text), len(answers))
    for index in rng.sample(range(len(answers)), len(answers)):
        found.note(index, answers[index], answers[index] == "a")
    assert (found.counted, found.is_decided) == (expected.counted, expected.is_decided)
    assert found.standing == expected.standing


def test_all_that_is_due_is_wanted_whatever_it_says() -> None:
    for text, required in (("decided", 20), ("confident", 4), ("window", 5), ("right=3", 3)):
        assert Deciding(StopRule.parse(text), 40).required == required
    found = deciding("decided", ["a"] * 18 + ["b"] * 2, 40)
    assert (found.counted, found.required, found.is_decided) == (20, 22, False)


@pytest.mark.parametrize("confidence", ["0.95", "0.9", "0.6"])
def test_confident_is_the_beta_criterion(confidence: str) -> None:
    """1 - I(1/2; leader + 1, second + 1), as a sum of binomials in exact numbers."""
    for second in range(12):
        for leader in range(second, 40):
            throws = leader + second + 1
            doubt = Fraction(sum(math.comb(throws, k) for k in range(second + 1)), 2**throws)
            counts = {"a": leader, "b": second} if second else {"a": leader}
            standing = Standing(0, 0, counts, {"a": 0, "b": 1}, "a", "b" if second else None)
            want = least(StopRule.parse(f"confident={confidence}"), 1000, standing)
            assert (want == 0) == (1 - doubt >= Fraction(confidence))


def test_windows_do_not_overlap_and_a_silent_sample_breaks_one() -> None:
    assert deciding("window=3", list("abbbcc"), 9).counted == 6  # "bbb" lies across two windows
    assert deciding("window=3", list("abcaaa"), 9).is_decided
    assert not deciding("window=3", ["a", None, "a"], 9).is_decided
    assert not deciding("window=3", [None] * 6, 9).is_decided


def test_right_ends_with_the_last_right_sample() -> None:
    found = deciding("right=2", ["b", "a", None, "a", "a"], 9)
    assert (found.is_decided, found.counted) == (True, 4)


def test_a_gap_holds_the_prefix_up_and_more_than_asked_is_not_read() -> None:
    found = Deciding(StopRule.parse("confident"), 6)
    assert not found.note(1, "a") and found.counted == 0
    assert found.note(0, "a") and found.counted == 2
    assert not found.note(6, "a")
    for index in (2, 3):
        assert found.note(index, "a")
    assert found.is_decided and not found.note(4, "b") and found.counted == 4


def test_the_first_two_are_those_of_the_vote() -> None:
    for order in set(permutations("aabbbcc")):
        standing = Standing()
        for answer in order:
            standing.add(answer, False)
        records = [Record("p", i, "h", "text", answer=a) for i, a in enumerate(order)]
        [vote] = tally(records)
        assert [standing.leader, standing.second] == list(vote.counts)[:2]
