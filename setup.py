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

PICTURE = re.compile(r"<picture>.*?</picture>", re.DOTALL)
SOURCE = re.compile(r'(src|srcset)="(?!https?:)([^"]+)"')


def page(readme: str, repository: str | None, version: str) -> str:
    """The README as it is shown where the files beside it are not."""

    def address(kind: str, target: str) -> str:
        return f"{(repository or '').rstrip('/')}/{kind}/v{version}/{target}"

    def link(found: re.Match[str]) -> str:
        is_image, text, target = found.groups()
        if repository is not None:
            return f"{is_image}[{text}]({address('raw' if is_image else 'blob', target)})"
        if is_image:
            return f"*{text}*"
        return text if target in text else f"{text} ({target.partition('#')[0]})"

    def picture(found: re.Match[str]) -> str:
        source, text = found.group(), re.search(r'alt="([^"]*)"', found.group())
        if repository is None:
            return f"*{text[1] if text else ''}*"
        return SOURCE.sub(lambda of: f'{of[1]}="{address("raw", of[2])}"', source)

    return LINK.sub(link, PICTURE.sub(picture, readme))


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
