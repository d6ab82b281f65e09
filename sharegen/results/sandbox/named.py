"""What both processes find in Python itself: functions, classes and modules, by their names."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


def public_name(value: Any) -> str | None:
    """How Python's own modules call a function, class or module of theirs; None for all else."""
    if isinstance(value, types.ModuleType):
        return value.__name__ if _is_pythons(value.__name__) else None
    if value is NotImplemented or value is Ellipsis:
        return f"builtins:{value!r}"
    owner = getattr(value, "__objclass__", value)
    module, name = getattr(owner, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not _is_pythons(module):
        return None
    try:
        return f"{module}:{name}" if named(f"{module}:{name}") is value else None
    except (ImportError, AttributeError):
        return None


def _is_pythons(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def named(name: str) -> Any:
    module, _, path = name.partition(":")
    value: Any = importlib.import_module(module)
    for part in path.split(".") if path else ():
        value = getattr(value, part)
    return value
