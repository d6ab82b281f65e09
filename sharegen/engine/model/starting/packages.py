"""Which distributions each importable package is of, sooner than Python says it.

Older transformers ask it with their import. Python then looks for every installed file on the disk,
and reads a distribution's metadata anew for each package of it.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from importlib import metadata


def packages_distributions() -> dict[str, list[str]]:
    """What `importlib.metadata.packages_distributions` returns, files that are gone included."""
    found: dict[str, list[str]] = defaultdict(list)
    for distribution in metadata.distributions():
        packages = (distribution.read_text("top_level.txt") or "").split()
        packages = packages or [name for name in _recorded(distribution) if "." not in name]
        name = distribution.metadata["Name"] if packages else ""
        for package in packages:
            found[package].append(name)
    return dict(found)


def _recorded(distribution: metadata.Distribution) -> set[str]:
    """The first part of each installed file's path; of a module at the top its name."""
    record = distribution.read_text("RECORD")
    if record is None or '"' in record:  # an egg, or a path with a comma
        return {_first(str(file)) for file in distribution.files or ()}
    return {_first(line.partition(",")[0]) for line in record.splitlines()}


def _first(path: str) -> str:
    first, slash, _ = path.partition("/")
    return first if slash else inspect.getmodulename(path) or path
