"""Sets of keys with a bit each: like any set of them."""

from __future__ import annotations

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from sharegen.results.journal.keys import Key, Keys

NAMES = st.sampled_from(["a", "b"])
HASHES = st.sampled_from([None, "x"])
SAMPLES = st.one_of(st.none(), st.integers(0, 5), st.sampled_from([1023, 1024, 5000, 2**31 - 1]))
KEYS = st.builds(Key, NAMES, HASHES, SAMPLES)
CHANGES = st.lists(st.tuples(st.booleans(), KEYS), max_size=30)


@settings(max_examples=60, deadline=None)
@given(CHANGES, st.lists(KEYS, max_size=10))
def test_like_a_set(changes: list[tuple[bool, Key]], others: list[Key]) -> None:
    keys, expected = Keys(), set[Key]()
    for is_new, key in changes:
        (keys.add if is_new else keys.discard)(key)
        (expected.add if is_new else expected.discard)(key)
    assert keys == expected and expected == keys and len(keys) == len(expected)
    assert sorted(keys, key=repr) == sorted(expected, key=repr)
    assert all((key in keys) == (key in expected) for key in others)
    assert keys - Keys(others) == expected - set(others)
    keys |= Keys(others)
    assert keys == expected | set(others) and len(keys) == len(expected | set(others))


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 3000), max_size=20), st.integers(0, 2100), st.integers(0, 2100))
def test_what_is_missing(finished: set[int], start: int, count: int) -> None:
    keys = Keys(Key("a", "x", sample) for sample in finished)
    samples = range(start, start + count)
    assert list(keys.missing("a", "x", samples)) == [i for i in samples if i not in finished]
    assert keys.missing("b", "x", samples) is samples


def test_many_samples_of_a_problem_are_one_number() -> None:
    keys = Keys(Key("a", "x", sample) for sample in range(1000))
    assert len(keys) == 1000
    assert sum(map(sys.getsizeof, keys._pages.values())) < 200
