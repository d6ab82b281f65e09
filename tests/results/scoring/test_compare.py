"""What counts as the expected output, token by token and value by value."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharegen.results.sandbox.literal import encode
from sharegen.results.scoring.compare import same_output, same_value


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1 2\n3", "1 2 3\n"),
        ("  a\tb \r\n", "a b"),
        ("", " \n"),
        ("0.333333", "0.3333333333"),
        ("3.0", "3"),
        ("1e3", "1000.0"),
        (".5", "0.50"),
        ("100000.9", "100000.0"),
        ("1e400", "10.0e399"),
        ("9" * 400, "9" * 400 + ".0"),
    ],
)
def test_same_tokens(written: str, expected: str) -> None:
    assert same_output(written, expected)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1 2", "1 2 3"),
        ("12", "1 2"),
        ("YES", "Yes"),
        ("1000000", "1000001"),
        ("0.3334", "0.3333"),
        ("nan", "nan1"),
        ("inf", "1e400"),
        ("nan", "0.5"),
        ("1_0", "10.0"),
        ("0x1", "1.0"),
        ("", "0"),
        ("٣", "3.0"),
        ("9" * 5000, "9" * 5000 + ".5"),
        ("0.5", "9" * 400),
        ("5", "1e400"),
        ("1e400", "1e401"),
        ("-1e400", "1e400"),
        ("1e308", "1e309"),
        ("1e400", "1e" + "9" * 30),
        ("0", "1e" + "9" * 30),
    ],
)
def test_other_tokens(written: str, expected: str) -> None:
    assert not same_output(written, expected)


@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1)))
def test_white_space_never_matters(tokens: list[str]) -> None:
    assert same_output(" ".join(tokens), "\n\n".join(tokens) + "\t")


@given(st.integers(), st.integers())
def test_integers_are_exact(a: int, b: int) -> None:
    assert same_output(str(a), str(b)) == (a == b)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (3, [3]),
        ([3], [3]),
        ((1, (2, 3)), [1, [2, 3]]),
        ({1: (2,)}, {"1": [2]}),
        (0.1 + 0.2, 0.3),
        (3.0, 3),
        (10**30, 10**30),
        (None, None),
        (True, True),
        ("a", ["a"]),
        ([], []),
        (float("inf"), float("inf")),
    ],
)
def test_same_values(value: object, expected: object) -> None:
    assert same_value(encode(value), expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 4),
        (3, "3"),
        ([3, 4], [[4, 3]]),
        (3, [3, 4]),
        ([1], []),
        ({1, 2}, [1, 2]),
        (iter([1]), [1]),
        (range(2), [0, 1]),
        (1.001, 1.0),
        (10**400, 1.5),
        ({"a": 1}, {"a": 1, "b": 2}),
        (b"a", "a"),
        (None, []),
    ],
)
def test_other_values(value: object, expected: object) -> None:
    assert not same_value(encode(value), expected)


@pytest.mark.parametrize(
    "junk", [{}, {"x": 1}, {"t": 3}, {"d": [1]}, {"d": [[[], 1]]}, {"i": 5}, {"a": 1, "b": 2}]
)
def test_junk_equals_nothing(junk: object) -> None:
    assert not same_value(junk, junk)


@pytest.mark.parametrize("written", ["1" * 10**6 + "x", "1." + "1" * 10**6 + "e", "1" * 10**6])
def test_long_numbers_take_no_time(written: str) -> None:
    """Programs choose what is compared here, outside of the sandbox."""
    started = time.process_time()
    assert not same_output(written, "1.5")
    assert time.process_time() - started < 4
