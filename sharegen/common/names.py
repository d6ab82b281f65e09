"""Names as people write them: in any case, and sometimes misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

SHOWN = 80
"""Characters of a wrong value that a message shows."""


def nearest(name: str, names: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The name that `name` was probably meant to be; cutoff: how alike they must be, in 0..1."""
    by_case = {known.casefold(): known for known in names}
    found = difflib.get_close_matches(name[:SHOWN].casefold(), by_case, n=1, cutoff=cutoff)
    return by_case[found[0]] if found else None


def named(name: str, names: Iterable[str]) -> str | None:
    """The one of the names that `name` is, whatever its case: GSM8K is gsm8k."""
    return next((known for known in names if known.casefold() == name.casefold()), None)


_MOST = 12  # names in a list that a message shows


def listed(names: Iterable[str], most: int = _MOST) -> str:
    """Names in a message: the first few, each cut short, and how many more there are."""
    known = [str(name) for name in names]
    shown = [name if len(name) <= SHOWN // 2 else f"{name[: SHOWN // 2]}…" for name in known[:most]]
    more = f" and {len(known) - most:,} more" if len(known) > most else ""
    return ", ".join(shown) + more if known else "none"
