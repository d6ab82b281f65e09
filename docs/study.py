"""Runs the study of docs/tutorial/gsm8k-study.md on the bundled problems and draws its pictures.

    python docs/study.py

It takes some minutes on two cores. The pictures go to docs/assets/, all else to a folder that is
removed. The page's screenshot is taken by Chromium; where there is none, the old one stays.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
PICTURES = ("curve", "margins")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HEAD = (1000, 412)  # pixels of the page that are shown: its title and what came out


def sharegen(folder: Path, *arguments: str) -> None:
    """One command, as it is typed in the folder of the study."""
    subprocess.run([sys.executable, "-m", "sharegen", *arguments], cwd=folder, check=True)


def screenshot(page: Path, picture: Path) -> None:
    """The head of a page as a browser shows it."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"no browser ({', '.join(BROWSERS)}): {picture.name} stays", file=sys.stderr)
        return
    size = "--window-size={},{}".format(*HEAD)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", size]
    subprocess.run([browser, *flags, f"--screenshot={picture}", page.as_uri()], check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sharegen(folder, "run", "self-consistency", "-o", "study.jsonl")
        sharegen(folder, "report", "study.jsonl", "--output", "pictures/")
        sharegen(folder, "report", "study.jsonl", "--html", "study.html")
        screenshot(folder / "study.html", ASSETS / "study-page.png")
        for picture in PICTURES:
            shutil.copy(folder / "pictures" / f"{picture}.svg", ASSETS / f"{picture}.svg")


if __name__ == "__main__":
    main()
