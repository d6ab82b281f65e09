"""How to install what an extra of sharegen brings, in words that work wherever sharegen came from.

`pip install 'sharegen[ray]'` asks an index for sharegen. An installation from a clone or a wheel is
on none, so messages name the packages themselves, as the installed metadata does.
"""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

_REQUIREMENT = re.compile(r"([^;]+);.*\bextra == [\"']([^\"']+)[\"']")


def install(extra: str) -> str:
    """A command that installs what the extra brings, such as "pip install 'peft>=0.13'"."""
    in_a_clone = f"'.[{extra}]' in a clone of sharegen"
    packages = " ".join(f"'{package}'" for package in _packages(extra))
    return f"{_pip()} {packages or in_a_clone}"


def _packages(extra: str) -> list[str]:
    """The extra's requirements; none where sharegen runs from a folder that was never installed."""
    try:
        found = requires("sharegen") or []
    except PackageNotFoundError:
        return []
    matches = (_REQUIREMENT.fullmatch(line) for line in found)
    return [match[1].strip() for match in matches if match is not None and match[2] == extra]


def _pip() -> str:
    """Return pip of this very Python: that of the PATH may be another environment's."""
    python = Path(sys.executable)
    on_path = shutil.which("pip")
    if on_path is not None and Path(on_path).parent == python.parent:
        return "pip install"
    return f"{python} -m pip install"
