"""Is this the expected output? Comparison happens here, outside the sandbox, on plain data."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

_RELATIVE, _ABSOLUTE = 1e-5, 1e-8
_ROUNDING = 1e-9
_INTEGER = re.compile(r"[+-]?[0-9]+")
# One way to match each text: programs choose it, and a million digits must not take all day.
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def same_output(written: str, expected: str) -> bool:
    """Whether a program wrote what it should have: the same tokens between white space.

    Tokens are equal as text, or as numbers of which at least one is no integer, within the
    tolerance of APPS (numpy.allclose: 1e-5 of the expected value plus 1e-8). Integers are exact:
    APPS lets them differ by 1e-5 of their value too, which passes wrong counts. So are numbers
    that overflow a float.
    """
    ours, theirs = written.split(), expected.split()
    return len(ours) == len(theirs) and all(map(_same_token, ours, theirs))


def _same_token(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    if not (_NUMBER.fullmatch(ours) and _NUMBER.fullmatch(theirs)):
        return False
    if _INTEGER.fullmatch(ours) and _INTEGER.fullmatch(theirs):
        return False
    got, wanted = float(ours), float(theirs)
    if math.isinf(got) or math.isinf(wanted):
        return _exactly_equal(ours, theirs)
    return abs(got - wanted) <= _ABSOLUTE + _RELATIVE * abs(wanted)


def _exactly_equal(ours: str, theirs: str) -> bool:
    """Whether numbers that no float holds are equal, exactly."""
    try:
        return Decimal(ours) == Decimal(theirs)
    except InvalidOperation:  # an exponent beyond any number's
        return False


def same_value(encoded: Any, expected: Any, is_exact: bool = False) -> bool:
    """Whether a function returned what it should have.

    encoded: the value as `sandbox.literal` encodes it; expected: JSON data. Many rows of APPS hold
    a result as the only item of a list, so either counts, unless is_exact. A tuple is a list, an
    int key is its string, since JSON has neither; floats may differ by rounding.
    """
    try:
        value = _plain(encoded)
    except (TypeError, ValueError, KeyError, RecursionError):
        return False
    if _same(value, expected):
        return True
    is_wrapped = isinstance(expected, list) and len(expected) == 1 and not is_exact
    return is_wrapped and _same(value, expected[0])


def _plain(encoded: Any) -> Any:
    """The JSON form of a value, as a dataset would hold it. Raises ValueError for what has none."""
    if isinstance(encoded, list):
        return [_plain(item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    ((tag, inner),) = encoded.items()
    if tag == "t":
        return [_plain(item) for item in inner]
    if tag == "i":
        return int(inner, 16)
    if tag == "d":
        return {_key(_plain(key)): _plain(value) for key, value in inner}
    raise ValueError(f"no JSON has {tag!r}")


def _key(key: Any) -> str:
    if isinstance(key, (list, dict)):
        raise ValueError("no JSON has such a key")
    return key if isinstance(key, str) else str(key)


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_same, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            _same(value[key], expected[key]) for key in value
        )
    if isinstance(value, float) or isinstance(expected, float):
        numbers = isinstance(value, (int, float)) and isinstance(expected, (int, float))
        return numbers and _close(value, expected)
    return bool(value == expected)


def _close(value: float, expected: float) -> bool:
    if value == expected or (value != value and expected != expected):
        return True
    try:
        return math.isclose(value, expected, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    except OverflowError:  # an int that no float can hold
        return False
