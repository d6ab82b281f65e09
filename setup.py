"""The package's page on an index: the README, with links that lead somewhere from there.

pyproject.toml has all else. A link of the README to a file of the repository becomes an address if
`[project.urls]` names the repository. Otherwise the link goes, and its text says which file is
meant.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\]\([^)]*\))*)\]\((?!https?:|#)([^)\s]+)\)")


def page(readme: str, repository: str | None, version: str) -> str:
    """The README as it is shown where the files beside it are not."""

    def link(found: re.Match[str]) -> str:
        is_image, text, target = found.groups()
        if repository is not None:
            kind = "raw" if is_image else "blob"
            return f"{is_image}[{text}]({repository.rstrip('/')}/{kind}/v{version}/{target})"
        if is_image:
            return f"*{text}*"
        return text if target in text else f"{text} ({target.partition('#')[0]})"

    return LINK.sub(link, readme)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=page(
            (HERE / "README.md").read_text(encoding="utf-8"),
            project.get("urls", {}).get("Repository"),
            project["version"],
        ),
        long_description_content_type="text/markdown",
    )
