"""Answers brought to one spelling, to be counted.

Two spellings are one answer only where they are surely equal, since a wrong merge forges votes:

- Numbers are compared by exact value: `18`, `18.00`, `+18`, `018`, `36/2` and `1.8e1` are one
  answer, `0.5`, `.5`, `1/2` and `\\frac{1}{2}` another; `0.33` and `1/3` are two. `-0` is `0`.
- Thousands commas count only in full groups of three (`1,018`); `1,01` and `1,2,3` are text.
- Currency, per cent and degree signs are dropped: `$18`, `18 €`, `18%`, `90°`. So `18%` is `18`,
  as a gold answer writes it that knows what was asked for, and is not `0.18`.
- Words stay: `5 cents` are not `5 dollars`, `5 am` is not `5 pm`. A pattern that captures the
  number alone leaves them out.
- A minus sign may be U+2212 or a dash; `3-5` is text.
- Anything else is text: compared without case, with runs of space as one, and without quotes,
  emphasis or closing punctuation around it.
"""

from __future__ import annotations

import re
from fractions import Fraction

_SPELLINGS = str.maketrans(
    {
        "\u2212": "-",  # minus sign
        "\ufe63": "-",  # small hyphen-minus
        "\uff0d": "-",  # fullwidth hyphen-minus
        "\u2010": "-",  # hyphen
        "\u2011": "-",  # non-breaking hyphen
        "\u2012": "-",  # figure dash
        "\u2013": "-",  # en dash
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
    }
)
_AROUND = " \"'`*"
_AFTER = _AROUND + ".,;:!?"

# Longer than this is no number that anyone writes, and exact arithmetic has a price.
_MAX_NUMBER = 100
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_SIGN = r"[-+]?\s?"
_CURRENCY = r"(?:\\?\$|[€£¥₹])"
_NUMBER = re.compile(
    rf"""
    (?P<sign>{_SIGN}) (?:{_CURRENCY}\s?)? (?P<inner>{_SIGN})
    (?:
        (?P<whole>\d+) \s (?P<part>\d+/\d+)
      | (?P<over>{_DECIMAL}) \s?/\s? (?P<under>{_DECIMAL})
      | \\[dt]?frac\{{ (?P<latex_over>{_DECIMAL}) \}}\{{ (?P<latex_under>{_DECIMAL}) \}}
      | (?P<decimal>{_DECIMAL} (?:[eE][-+]?\d{{1,3}})?)
    )
    \s? (?:\\?%|°|{_CURRENCY})?
    """,
    re.VERBOSE,
)


def normalise(answer: str) -> str:
    """The one spelling under which equal answers are counted; "" for nothing but punctuation.

    A number comes back as a plain decimal without trailing zeros, or as a fraction in lowest
    terms where no decimal ends (`1/3`). Normalising twice changes nothing.
    """
    text = " ".join(answer.translate(_SPELLINGS).split()).lstrip(_AROUND).rstrip(_AFTER)
    value = _value(text)
    if value is not None:
        return _decimal(value)
    bare = text.casefold().strip(_AFTER)
    return bare if bare in (text, "") else normalise(bare)  # `..5` is a number without its dots


def _value(text: str) -> Fraction | None:
    """The exact value of a number, None for what is none."""
    if len(text) > _MAX_NUMBER:
        return None
    match = _NUMBER.fullmatch(text)
    if match is None or (match["sign"].strip() and match["inner"].strip()):
        return None
    try:
        if match["whole"]:
            value = _exact(match["whole"]) + Fraction(match["part"])
        elif match["over"]:
            value = _exact(match["over"]) / _exact(match["under"])
        elif match["latex_over"]:
            value = _exact(match["latex_over"]) / _exact(match["latex_under"])
        else:
            value = _exact(match["decimal"])
    except ZeroDivisionError:
        return None
    return -value if "-" in match["sign"] + match["inner"] else value


def _exact(number: str) -> Fraction:
    return Fraction(number.replace(",", ""))


def _decimal(value: Fraction) -> str:
    """Written out in decimals where these end, else as `n/d`."""
    places, rest = 0, value.denominator
    while rest % 10 == 0:
        places, rest = places + 1, rest // 10
    for prime in (2, 5):
        while rest % prime == 0:
            places, rest = places + 1, rest // prime
    if rest != 1:
        return str(value)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    whole, decimals = digits[: len(digits) - places], digits[len(digits) - places :]
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"
