r"""Answers brought to one spelling, under which they are counted.

Two spellings are one answer only where they are surely equal, since a wrong merge forges votes:

- Numbers are compared by exact value: `18`, `18.00`, `+18`, `018`, `36/2`, `1.8e1` and `eighteen`
  are one answer, `0.5`, `.5`, `1/2` and `\frac{1}{2}` another; `0.33` and `1/3` are two.
- Thousands count only in full groups of three (`1,018`, `1 018`, `1{,}018`), Indian ones by comma;
  `1,01`, `0,500` and `1,2,3` are text.
- Currency, per cent and degree signs are dropped: `$18`, `18 €`, `18%`, `90°`. So `18%` is `18`,
  as a gold answer writes it that knows what was asked for, and is not `0.18`.
- Words stay: `5 cents` are not `5 dollars`, `5 am` is not `5 pm`.
- A minus sign may be U+2212 or a dash; `3-5` is text. `5!` is not `5`, nor `5'` `5"`.
- What LaTeX says of the look alone is dropped: `$...$`, `\boxed{}`, `\text{}`, `\left`, spaces.
- Anything else is text: compared without case, with runs of space as one, and without quotes,
  emphasis or closing punctuation around it.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from sharegen.results.answers import numerals, words
from sharegen.results.answers.numerals import PLAIN

LONGEST = 10_000
"""Characters; what is longer is no answer that anyone wrote, and is counted by its hash."""

WHOLE = re.compile(r"-?[1-9][0-9]{0,8}")
"""Whole numbers in the one spelling that they have here, as most answers are."""

_QUOTES = "\"'"
_AROUND = " `*" + _QUOTES
_AFTER = _AROUND + ".,;:!?。"

_ALL_OF_IT = re.compile(
    r"\$+(?P<math>[^$]+)\$+|\\\((?P<round>(?:(?!\\[()]).)*)\\\)|\\\[(?P<square>(?:(?!\\[\[\]]).)*)\\\]"
    r"|\\(?:boxed|fbox)\s?\{(?P<box>[^{}]*(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}[^{}]*)*)\}",
    re.DOTALL,
)
_LOOKS = (
    (
        re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s?\{([^{}]*)\}"),
        r" \1 ",
    ),
    (re.compile(r"(?<!\\)\\(?:(?:left|right|displaystyle|limits)(?![A-Za-z])|!)"), ""),
    (re.compile(r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))|~"), " "),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\s?\^\s?(?:\{\s?\\circ\s?\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])"), "°"),
    (re.compile(r"\\([%$#&])"), r"\1"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"([_^])\{\s?(\w)\s?\}"), r"\1\2"),
)
_ASIDE = re.compile(r"(?P<number>[^()]*\d) ?\((?P<aside>[^\W\d][^()\d]*)\)")


def normalise(answer: str) -> str:
    """The one spelling under which equal answers are counted; "" for nothing but punctuation.

    A number comes back as a plain decimal without trailing zeros, or as a fraction in lowest
    terms where no decimal ends (`1/3`). Normalising twice changes nothing.
    """
    if WHOLE.fullmatch(answer) is not None:
        return answer
    if len(answer) > LONGEST:
        digest = hashlib.blake2b(answer.encode("utf-8", "replace"), digest_size=8).hexdigest()
        return f"text of {len(answer)} characters, {digest} by hash"
    return _normalised(answer)


@lru_cache(maxsize=100_000)  # the samples of a problem give few answers, many times each
def _normalised(answer: str) -> str:
    text = answer
    while (simpler := _simplified(text)) != text:
        text = simpler
    return text


def plain(text: str) -> str:
    """The text as it is compared: plain characters, runs of space as one, nothing around it."""
    return _bare(" ".join(text.translate(PLAIN).split()))


def unwrapped(text: str) -> str:
    """The text in plain characters, without what LaTeX says of its look alone."""
    bare = plain(text)
    while (inside := _inside(bare)) != bare:
        bare = inside
    return bare


def _inside(bare: str) -> str:
    """Return the same with one wrapping less."""
    whole = _ALL_OF_IT.fullmatch(bare)
    if whole is not None:
        return plain(next(inside for inside in whole.groups() if inside is not None))
    for pattern, instead in _LOOKS:
        bare = pattern.sub(instead, bare)
    return plain(bare)


def _simplified(text: str) -> str:
    bare = plain(text)
    value = numerals.value_of(bare)
    if value is None:
        value = words.value_of(bare)
    if value is not None:
        return numerals.decimal(value)
    bare = unwrapped(bare)
    aside = _ASIDE.fullmatch(bare)
    if aside is not None:
        said = words.value_of(aside["aside"])
        same = said is not None and said == numerals.value_of(aside["number"].strip())
        bare = aside["number"] if same else f"{aside['number']} {aside['aside']}"
    return plain(bare.casefold())


def _bare(text: str) -> str:
    """The text without what stands around it: quotes and emphasis, and punctuation at its end."""
    begins = text.lstrip(_AROUND)
    opened = text[: len(text) - len(begins)]
    end = len(begins)
    while end and begins[end - 1] in _AFTER and not _belongs(begins[:end], opened):
        end -= 1
    return begins[:end]


_PRIMED = re.compile(r"(?:\d|[)\]}]|(?<![^\W\d_])[^\W\d_])['\"!]+\Z")


def _belongs(text: str, opened: str) -> bool:
    """Whether the last character is part of an answer: the `!` of 5!, the `'` of 5' or f'."""
    last = text[-1]
    if last not in "!'\"" or (last in _QUOTES and last in opened):
        return False
    return text.endswith("\\!") or _PRIMED.search(text, max(0, len(text) - 12)) is not None
