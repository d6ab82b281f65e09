r"""Numbers as people and models write them, with their exact values.

Thousands in groups of three by comma, space, apostrophe or underscore (Indian groups by comma);
decimals by point; exponents, `3 \times 10^4`, powers, fractions in a line or by `\frac`, mixed
numbers, signs and currencies of all kinds. What looks like a number and is none (a date, a time, a
ratio, a range) has no value and stays one text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from sharegen.results.answers.reading import Reading

MAX_LENGTH = 100
"""Characters; what is longer is no number that anyone writes, and exact arithmetic has a price."""

_MOST_DIGITS = 400  # of a power's value

_DASHES = "\u2212\ufe63\uff0d\u2010\u2011\u2012\u2013\u2014\u2015"
_SPACES = "\u00a0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
PLAIN = str.maketrans(
    {chr(wide): chr(wide - 0xFEE0) for wide in range(0xFF01, 0xFF5F)}  # full-width forms
    | dict.fromkeys(_DASHES, "-")
    | dict.fromkeys(_SPACES, " ")
    | {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2044": "/", "\u2215": "/"}
)
"""One character for one: every place in a text stays where it is."""

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_VULGAR = "[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒]"

CURRENCY = r"(?:(?:US|CA?|AU?|NZ|HK)?\\?\$|[€£¥₹₽₩]|(?:USD|EUR|GBP|INR|Rs\.?)(?=[\s\d.-]))"
_GAP = r"\\[,;:!\ ]"  # LaTeX's spaces
_BETWEEN = (",", r"\{,\}", r",\\!\ ?", _GAP, r"\ ", "'", "_", "~")  # groups of three digits
_GROUPED = "|".join(rf"[1-9]\d{{0,2}}(?:{gap}\d{{3}})+(?!\d)" for gap in _BETWEEN)
_INDIAN = r"[1-9]\d?(?:,\d\d)+,\d{3}(?!\d)"
_POINTS = r"[1-9]\d{0,2}(?:\.\d{3}){2,}(?!\.?\d)"
_NUMBER = rf"(?:(?:{_POINTS}|{_GROUPED}|{_INDIAN}|\d+)(?:\.\d+)?|\.\d+)"
_COMMA = (  # a decimal comma, where it can part no thousands
    rf"(?<!\d,)(?!{_INDIAN}|[1-9]\d{{0,2}}(?:,\d{{3}})+(?!\d))"
    r"(?:[1-9]\d{0,2}(?:[.\ ']\d{3})+,\d+|(?:0|[1-9]\d*),\d+)(?![\d,])"
)
_SIGN = r"(?:[-+]|(?:negative|minus)\ )"
_SCALES = {
    "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "dozen": 12, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9,
}  # fmt: skip
_LETTERS = {"k", "K", "M", "B"}

_MONTH_NAMES = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December", "Jan", "Feb", "Mar", "Apr", "Jun", "Jul", "Aug", "Sept",
    "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip
_MONTH = rf"(?:{'|'.join(_MONTH_NAMES)})\.?"
_DAY = r"(?:0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_PAIRS = "|".join(  # of a quantity, and of the rest of it
    rf"\d+\ ?(?:{more})(?:,?\ (?:and\ )?)\d+\ ?(?:{less})\b"
    for more, less in (
        ("hours?|hrs?|h", "minutes?|mins?|m"), ("minutes?|mins?", "seconds?|secs?|s"),
        ("days?", "hours?|hrs?|h"), ("weeks?", "days?"), ("years?", "months?"),
        ("feet|foot|ft", "inch(?:es)?|in"), ("pounds?|lbs?", "ounces?|oz"),
    )
)  # fmt: skip

_NUMERAL = rf"""
    (?: (?P<sign>{_SIGN}) \s? )?
    (?P<currency>{CURRENCY} (?:\s|{_GAP}|\{{\}})*)?
    (?: (?P<inner>{_SIGN}) \s? )?
    (?:
        (?P<date> \d{{4}}-\d{{1,2}}-\d{{1,2}} | \d{{1,2}}/\d{{1,2}}/\d{{2,4}}
            | \d{{1,2}}[-.]\d{{1,2}}[-.]\d{{4}} ) (?!\d)
      | (?P<words> {_MONTH}\ {_DAY},?\ \d{{4}} | {_DAY}\ (?:of\ )?{_MONTH},?\ \d{{4}}
            | {_PAIRS} ) (?!\d)
      | (?P<ratio> \d+(?:\.\d+)? (?:(?::\d+(?:\.\d+)?)+ | (?:\ :\ \d+(?:\.\d+)?)+) )
      | (?P<range> {_NUMBER}%?-{CURRENCY}?{_NUMBER} ) (?!\d | \s?[=≈+*/^×÷-] | \.\d)
      | (?P<vulgar_whole> \d+ )? \s? (?P<vulgar> {_VULGAR} )
      | (?:(?P<latex_whole> \d+ ) (?:\s|{_GAP}|\ and\ )*)? \\[dtc]?frac\s*
            (?: \{{\s* (?P<latex_over> -?{_NUMBER} ) \s*\}} | (?P<short_over> \d ) ) \s*
            (?: \{{\s* (?P<latex_under> -?{_NUMBER} ) \s*\}} | (?P<short_under> \d ) )
      | (?P<whole> \d+ ) \ (?:and\ )? (?P<part_over> \d+ ) / (?P<part_under> \d+ )
            (?![\d/])
      | (?P<over> {_NUMBER} ) \ ?/\ ? (?P<under> (?!0\d) {_NUMBER} ) (?!\d | \.\d | \ ?/)
      | (?P<base> {_NUMBER} ) \s? (?:\\times|×|\\cdot|·|\*|x)
            \s? 10 \s? (?: (?:\^|\*\*) \{{? \s? (?P<ten> [-+]?\d{{1,3}} ) (?!\d) \s? \}}?
            | (?P<raised_ten> [⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+ ) )
      | (?P<powered> {_NUMBER} ) \s? (?: (?:\^|\*\*(?=[\d{{-])) \s? \{{? \s?
            (?P<power> -?\d{{1,4}} ) (?!\d) \s? \}}?
            | (?P<raised> [⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+ ) )
      | (?P<number> {_NUMBER} (?:[eE][-+]?\d{{1,3}}(?!\d))? )
            (?: [\s-]? (?P<scale> hundred|thousand|million|billion|trillion|dozen|[kKMB] ) s?
            (?![A-Za-z]) )?
    )
"""
_WHOLE = re.compile(_NUMERAL + rf"(?:\s|{_GAP})* (?:\\?%|°|{CURRENCY}|[$])?", re.VERBOSE)
_REPEATING = re.compile(
    r"(?P<sign>-)?(?P<whole>\d+)\.(?P<first>\d*)\\(?:overline|bar)\{?(?P<again>\d+)\}?"
)
_COMMA_NUMERAL = rf"""
    (?: (?P<comma_sign>{_SIGN}) \s? )? (?:{CURRENCY}\s?)? (?P<comma_inner>{_SIGN})?
    (?P<comma>{_COMMA})
"""
_APART = r"(?<![A-Za-z\d])(?<![A-Za-z]_)(?<![A-Za-z)}]\^)"  # from what stands before
_SCAN = re.compile(rf"{_APART} (?: {_COMMA_NUMERAL} | {_NUMERAL} )", re.VERBOSE)
_ALONE = re.compile(rf"{_APART}[1-9][0-9]{{0,8}}")


_DIGIT = re.compile(rf"\d|{_VULGAR}")  # without which there is no number
_AHEAD = 64  # characters that may stand before a number's first digit, with blanks of usual length
_BLANKS = re.compile(r"[\s\\{},;:!]{8}")
_WORDS = ("negative", "minus", "USD", "EUR", "GBP", "INR", "Rs", "US", "CA", "C", "AU", "A", "NZ",
          "HK", *_MONTH_NAMES, "dfrac", "tfrac", "cfrac", "frac")  # fmt: skip
_BACKWARDS = re.compile(rf"(?:\W|_|{'|'.join(word[::-1] for word in _WORDS)})*")
"""What can stand before a number's first digit and belong to it, from there backwards."""


@dataclass(frozen=True)
class Numeral:
    """A number in a text.

    value: exact; None for a date, a time, a ratio or a range. written: in one plain spelling, a
    fraction as such. is_money: whether a currency stands before it.
    """

    start: int
    end: int
    value: Fraction | None
    written: str
    is_money: bool = False

    @property
    def reading(self) -> Reading:
        """The numeral as an answer, whose rule is not named yet."""
        return Reading(self.written, "", self.start, self.end)


def value_of(text: str) -> Fraction | None:
    """The exact value of a text that is a number and nothing else, as `PLAIN` has it."""
    if len(text) > MAX_LENGTH:
        return None
    repeating = _REPEATING.fullmatch(text)
    if repeating is not None:
        return _repeated(repeating)
    match = _WHOLE.fullmatch(text)
    if match is None or (match["scale"] in _LETTERS and not match["currency"]):
        return None
    return _value(match)


def _repeated(match: re.Match[str]) -> Fraction:
    """The value of decimals that repeat for ever: 0.1(6) is 1/6."""
    first, again = match["first"], match["again"]
    once = Fraction(int((first + again) or "0") - int(first or "0"), 10 ** len(first))
    value = int(match["whole"]) + once / (10 ** len(again) - 1)
    return -value if match["sign"] else value


def numerals(text: str, start: int, end: int) -> Iterator[Numeral]:
    """Every number in a part of a text, as `PLAIN` has it, from left to right."""
    alone = _ALONE.fullmatch(text, start, end)
    if alone is not None:  # as behind most marks: it takes far less time than to look for one
        yield _numeral(alone)
        return
    at = start
    while (match := _next(text, at, end)) is not None:
        at = max(match.end(), at + 1)
        sign = match["sign"] or match["comma_sign"]
        if sign and not _is_sign(text, match.start(), sign):
            at = match.start() + len(sign)
        elif match.end() - match.start() <= MAX_LENGTH:
            yield _with_comma(match) if match["comma"] else _numeral(match)


def _next(text: str, start: int, end: int) -> re.Match[str] | None:
    """The next number; text that has no digit is passed over, for most text has none."""
    digit = _DIGIT.search(text, start, end)
    if digit is None:
        return None
    near = max(start, digit.start() - _AHEAD)
    before = text[near : digit.start()]
    if near > start and _BLANKS.search(before) is not None:
        near = start
    else:
        begun = _BACKWARDS.match(before[::-1])
        assert begun is not None
        near = digit.start() - begun.end()
    return _SCAN.search(text, near, end)


def _with_comma(match: re.Match[str]) -> Numeral:
    value = Fraction(re.sub(r"[. ']", "", match["comma"]).replace(",", "."))
    if _signs(match["comma_sign"], match["comma_inner"]):
        value = -value
    return Numeral(*match.span(), value, decimal(value))


def _numeral(match: re.Match[str]) -> Numeral:
    digits = match[0]
    if digits.isdecimal():  # as most are
        number = int(digits)
        return Numeral(*match.span(), Fraction(number), str(number))
    is_letter = match["scale"] in _LETTERS and not match["currency"]  # of $5k, not of 5 k
    end = match.end("number") if is_letter else match.end()
    value = _value(match, scaled=not is_letter)
    return Numeral(match.start(), end, value, _written(match, value), bool(match["currency"]))


def decimal(value: Fraction) -> str:
    """The number in decimals where these end, else as `n/d`."""
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


_BEGINS = re.compile(r"(?:\b(?:is|was|be|equals|answer)|[=:(≈#*$])[ \t]*\Z")


def _is_sign(text: str, at: int, sign: str) -> bool:
    """Whether a minus or plus belongs to the number behind it: it may join two, or begin a line."""
    before = text[max(0, at - 10) : at]
    if len(sign) > 1 or _BEGINS.search(before):  # a word, or where a number begins
        return True
    is_apart = text[at + 1 : at + 2] == " "
    if not before.strip(" ") or before.rstrip(" ").endswith("\n"):
        return not is_apart  # else it is a list's mark
    last = before.rstrip(" ")[-1]
    if last.isdigit() or last in ")}%":
        return False
    return (before[-1] != last and not is_apart) or not last.isalnum()


def _signs(*signs: str | None) -> str:
    return "".join("-" if sign and sign[0] in "-nm" else "" for sign in signs)


def _value(match: re.Match[str], scaled: bool = True) -> Fraction | None:
    """The value of a number that was found; None if it has none or divides by zero."""
    if match["date"] or match["words"] or match["ratio"] or match["range"]:
        return None
    if match["sign"] and match["inner"]:
        return None
    try:
        value = _magnitude(match, scaled)
    except (ZeroDivisionError, OverflowError):
        return None
    return -value if value is not None and _signs(match["sign"], match["inner"]) else value


def _magnitude(match: re.Match[str], scaled: bool) -> Fraction | None:
    if match["vulgar"]:
        part = Fraction(unicodedata.numeric(match["vulgar"])).limit_denominator(10)
        return int(match["vulgar_whole"] or 0) + part
    over = match["latex_over"] or match["short_over"]
    if over:
        part = _exact(over) / _exact(match["latex_under"] or match["short_under"])
        return int(match["latex_whole"] or 0) + part
    if match["whole"]:
        return int(match["whole"]) + Fraction(int(match["part_over"]), int(match["part_under"]))
    if match["over"]:
        return _exact(match["over"]) / _exact(match["under"])
    if match["base"]:
        ten = match["ten"] or match["raised_ten"].translate(_SUPERSCRIPTS)
        return _exact(match["base"]) * Fraction(10) ** int(ten)
    if match["powered"]:
        base = _exact(match["powered"])
        power = int(match["power"] or match["raised"].translate(_SUPERSCRIPTS))
        if abs(power) * len(str(max(abs(base.numerator), base.denominator))) > _MOST_DIGITS:
            return None
        return Fraction(base**power)
    value = _exact(match["number"])
    return value * _SCALES[match["scale"]] if match["scale"] and scaled else value


def _exact(number: str) -> Fraction:
    """The value of digits in whatever groups."""
    mantissa, mark, power = number.replace("E", "e").partition("e")
    if mantissa.count(".") > 1:
        mantissa = mantissa.replace(".", "")
    plain = re.sub(r"[^\d.-]", "", mantissa)
    return Fraction(plain + mark + power)


def _written(match: re.Match[str], value: Fraction | None) -> str:
    if match["words"]:
        return re.sub(r",?\s+(?:and\s+)?", " ", match["words"])
    for kind in ("date", "ratio", "range"):
        if match[kind]:
            return re.sub(r"[\s$€£¥₹\\]", "", match[kind])
    if value is None:
        return match[0].strip()
    over = match["latex_over"] or match["short_over"] or match["over"]
    under = match["latex_under"] or match["short_under"] or match["under"]
    if over and not match["latex_whole"] and all(_exact(n).denominator == 1 for n in (over, under)):
        top, bottom = _exact(over), abs(_exact(under))
        sign = "-" if value < 0 else ""
        return f"{sign}{abs(top)}/{bottom}"
    return decimal(value)
