"""Numbers with units: 5 km are 5,000 m, no 5 miles, and may stand for 5 where none is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from sharegen.results.answers import numerals, words

_NAMES: dict[str, tuple[str, Fraction]] = {}
"""Name of a unit -> what it measures, and how many of the first unit of that it is."""

_METRIC = {
    letter: Fraction(factor)
    for letter, factor in {
        "": "1", "k": "1e3", "c": "0.01", "m": "0.001", "d": "0.1", "μ": "1e-6", "µ": "1e-6",
        "n": "1e-9",
    }.items()
}  # fmt: skip
_LARGE = {letter: Fraction(factor) for letter, factor in {"M": "1e6", "G": "1e9"}.items()}
_METRIC_WORDS = {
    word: Fraction(factor)
    for word, factor in {
        "": "1", "kilo": "1e3", "mega": "1e6", "giga": "1e9", "centi": "0.01", "milli": "0.001",
        "micro": "1e-6", "nano": "1e-9",
    }.items()
}  # fmt: skip

_OTHERS = """
length: in inch inches " = 0.0254; ft foot feet ' = 0.3048; yd yard yards = 0.9144
length: mi mile miles = 1609.344
mass: oz ounce ounces = 28.349523125; lb lbs pound pounds = 453.59237; ton tons = 907184.74
mass: t tonne tonnes = 1000000
time: s sec secs second seconds = 1; min mins minute minutes = 60; h hr hrs hour hours = 3600
time: day days = 86400; week weeks wk wks = 604800; ms millisecond milliseconds = 0.001
months: month months = 1; yr yrs year years = 12; decade decades = 120; century centuries = 1200
volume: gal gallon gallons = 3.785411784; qt quart quarts = 0.946352946; pt pint pints = 0.473176473
volume: cup cups = 0.2365882365; cc = 0.001
dollars: $ us$ usd dollar dollars bucks = 1; ¢ cent cents = 0.01
euros: € eur euro euros = 1
pounds sterling: £ gbp = 1; pence p = 0.01
yen: ¥ jpy yen = 1
rupees: ₹ inr rs rs. rupee rupees = 1
percent: % percent per\u00a0cent pct = 1
celsius: °c celsius degrees\u00a0celsius degree\u00a0celsius degrees\u00a0c = 1
fahrenheit: °f fahrenheit degrees\u00a0fahrenheit degree\u00a0fahrenheit degrees\u00a0f = 1
angle: ° deg degree degrees = 1
radians: rad radian radians = 1
speed: mph = 0.44704; kph kmh = 0.2777777777777777777777777777777778
bytes: byte bytes = 1; kb = 1000; mb = 1000000; gb = 1000000000
"""


def _fill() -> None:
    for measure, letter, name in (
        ("length", "m", "meter"), ("length", "m", "metre"), ("mass", "g", "gram"),
        ("volume", "l", "liter"), ("volume", "l", "litre"), ("power", "W", "watt"),
        ("force", "N", "newton"), ("energy", "J", "joule"), ("voltage", "V", "volt"),
        ("frequency", "Hz", "hertz"),
    ):  # fmt: skip
        prefixes = _METRIC | (_LARGE if letter[0].isupper() else {})
        for prefix, factor in prefixes.items():
            _NAMES[prefix + letter] = (measure, factor)
        for prefix, factor in _METRIC_WORDS.items():
            _NAMES[prefix + name] = _NAMES[prefix + name + "s"] = (measure, factor)
    _NAMES["L"], _NAMES["mL"] = _NAMES["l"], _NAMES["ml"]
    for line in _OTHERS.strip().splitlines():
        measure, _, units = line.partition(": ")
        for unit in units.split("; "):
            names, _, size = unit.partition(" = ")
            for name in names.split(" "):
                _NAMES[name.replace("\u00a0", " ")] = (measure, Fraction(size))


_fill()

_POWERS = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3, "cu.": 3}
_WORD = re.compile(r"[^\W\d_][^\W\d_'’-]*(?: [^\W\d_][^\W\d_'’-]*){0,5}")
_CURRENCY = re.compile(r"[^\d.]*?(US\$|\$|[€£¥₹]|USD|EUR|GBP|INR|Rs\.?)")


@dataclass(frozen=True)
class Quantity:
    """A number and what it counts.

    measure: what the unit measures, or the words that stand for one; None for a number alone.
    factor: how many of the measure's first unit the unit is.
    """

    value: Fraction
    measure: str | None
    factor: Fraction = Fraction(1)

    def equals(self, other: Quantity) -> bool:
        """Whether both say the same; a unit that only one of them names is taken for both.

        50% is 50, where a per cent was asked for, and is 1/2.
        """
        if self.measure is not None and other.measure is not None:
            is_same = self.measure == other.measure
            return is_same and self.value * self.factor == other.value * other.factor
        if self.value == other.value:
            return True
        unit = self if self.measure is not None else other
        bare = other if unit is self else self
        return unit.measure == "percent" and unit.value / 100 == bare.value


@lru_cache(maxsize=100_000)  # a gold answer is compared with many
def quantity(text: str) -> Quantity | None:
    """The number with its unit that a text (of plain characters) is; None for any other text."""
    value = numerals.value_of(text)
    if value is not None:
        return _alone(text, value)
    found = next(numerals.numerals(text, 0, len(text)), None)
    if found is None or found.start:
        in_words = next(words.numerals(text, 0, len(text)), None)
        found = in_words if in_words is not None and not in_words.start else None
    if found is None or found.value is None:
        return None
    rest = text[found.end :]
    currency = _CURRENCY.match(text[: found.end])
    if currency is not None:
        mine = _NAMES[currency[1].lower()]
        if re.match(r"\s*(?:/|per\b)", rest):
            rate = unit_of(f"{currency[1]} {rest.strip()}")
            return None if rate is None else Quantity(found.value, *rate)
        said = unit_of(rest.strip()) if rest.strip() else None
        return Quantity(found.value, *mine) if said in (None, mine) else None
    unit = unit_of(rest.strip(" -"), attached=not rest.startswith((" ", "-")))
    return None if unit is None else Quantity(found.value, *unit)


def _alone(text: str, value: Fraction) -> Quantity:
    """A number whose sign of a unit, if it has one, the number's own grammar knows."""
    currency = _CURRENCY.match(text) or re.search(r"([€£¥₹])$", text)
    if currency is not None and not (currency[1] == "$" and text.endswith("$")):
        return Quantity(value, *_NAMES[currency[1].lower()])
    for sign in ("%", "°"):
        if text.endswith(sign):
            return Quantity(value, *_NAMES[sign])
    return Quantity(value, None)


def unit_of(text: str, *, attached: bool = False) -> tuple[str, Fraction] | None:
    """What a unit measures and how large it is; words that are none stand for themselves.

    attached: whether it follows its number without a space, as a variable would.
    """
    text = text.strip(" .")
    power = re.fullmatch(r"(?P<name>.+?)\s?(?:\^\s?\{?(?P<n>[23])\}?|(?P<raised>[²³]))", text)
    if power is not None:
        unit = unit_of(power["name"])
        return _raised(unit, int(power["n"] or {"²": 2, "³": 3}[power["raised"]]))
    first, _, rest = text.partition(" ")
    if first.lower() in _POWERS and rest:
        return _raised(unit_of(rest), _POWERS[first.lower()])
    if (rate := re.fullmatch(r"(.+?)\s?(?:/|\bper\b)\s?(.+)", text)) is not None:
        over, under = unit_of(rate[1]), unit_of(rate[2])
        if over is None or under is None:
            return None
        if (over[0], under[0]) == ("length", "time"):
            return "speed", over[1] / under[1]
        return f"{over[0]} per {under[0]}", over[1] / under[1]
    for name in (text, text.lower()):
        if name in _NAMES:
            return _NAMES[name]
    is_counter = len(text) == 1 and not text.isascii() and text.isalpha()  # 18 个
    if not is_counter and (attached or len(text) < 2 or not _WORD.fullmatch(text)):
        return None
    return " ".join(_singular(word) for word in text.lower().split()), Fraction(1)


def _raised(unit: tuple[str, Fraction] | None, power: int) -> tuple[str, Fraction] | None:
    if unit is None:
        return None
    if unit[0] == "length" and power == 3:
        return "volume", unit[1] ** 3 * 1000
    return f"{unit[0]}^{power}", unit[1] ** power


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if re.search(r"(?:x|s|sh|ch|z)es$", word):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 2 else word
