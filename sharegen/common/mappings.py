"""Mappings of mappings, as recipes and recorded settings are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` on top, mapping by mapping; lists and scalars are replaced."""
    out = dict(base)
    for key, value in over.items():
        below = out.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        out[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return out
