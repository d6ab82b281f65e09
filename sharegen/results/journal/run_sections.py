"""What the sections of a run.json have to be, as far as anything here relies on it.

A run.json may have been edited, cut off by a crash or damaged by a disk, and comes from whoever
hands a journal on. What is wrong is named by its field, before anything fails on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, get_args

from sharegen.results.answers.reader import Extract

Check = Callable[[Any], bool]


def faults_in(sections: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong, beginning with the field's dotted name and a closing quote."""
    for name, section in sections.items():
        if not isinstance(section, dict):
            yield f"{name}` is not a JSON object"
            continue
        for key, value in section.items():
            for where, check, wanted in _CHECKS.get(name, ()):
                if where in (key, None) and not check(value):
                    yield f"{name}.{key}` is {json.dumps(value)[:40]}, and no {wanted}"
                    break
                if where == key:
                    break


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_section(value: Any) -> bool:
    return isinstance(value, dict)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _is_use(value: Any) -> bool:
    return _is_numbers(value) and (not value or {"reserved", "used"} <= value.keys())


def _is_points(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(point, list) and len(point) == 2 and all(map(_is_number, point))
        for point in value
    )


def _is_plan(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    numbers = {name: value.get(name, 0) for name in ("samples", "nodes", "state_bytes")}
    sizes = {name: value.get(name) for name in ("kv_unshared_bytes", "kv_shared_bytes")}
    return _is_numbers(numbers | sizes)


def _is_answer(value: Any) -> bool:
    if not isinstance(value, dict):
        return value is None
    patterns = value.get("patterns") or []
    known = value.get("extract") in (None, *get_args(Extract))
    return known and isinstance(patterns, list) and all(map(_is_text, patterns))


def _is_golds(value: Any) -> bool:
    return isinstance(value, dict) and all(v is None or _is_text(v) for v in value.values())


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


_SECTION = "section of settings"
_CHECKS: dict[str, tuple[tuple[str | None, Check, str], ...]] = {
    "fingerprints": (("clock", _is_time, "time"), (None, _is_text, "text")),
    "extent": (
        ("answer", _is_answer, "way to read answers"),
        ("sampling", _is_section, _SECTION),
        ("machine", _is_section, _SECTION),
        ("dataset", _is_section, _SECTION),
        ("shard", _is_section, _SECTION),
        ("recipe", _is_text, "text"),
    ),
    "answers": (("golds", _or_none(_is_golds), "object of answers"),),
    "counts": ((None, _is_number, "number"),),
    "timings": (
        ("progress", _is_points, "list of points"),
        ("start", _is_numbers, "object of numbers"),
        (None, _is_number, "number"),
    ),
    "stats": (
        ("plan", _or_none(_is_plan), "plan"),
        ("peak_kv", _or_none(_is_use), "use of blocks"),
        ("kv_in_steps", _or_none(_is_use), "use of blocks"),
        ("steps_by_levels", _or_none(_is_numbers), "object of numbers"),
        ("verified", _or_none(_is_section), "object"),
        ("drawn_again", _or_none(_is_section), "object"),
        ("idle", lambda value: isinstance(value, list), "list"),
        ("mixers", lambda value: True, ""),
        ("slow_attention", _or_none(_is_text), "text"),
        (None, _or_none(_is_number), "number"),
    ),
}
"""By section: a field, or None for all others; what it has to be, and what that is called."""
