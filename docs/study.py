"""Runs the study of docs/tutorial/gsm8k-study.md on the bundled problems and draws its pictures.

    python docs/study.py

It takes some minutes on two cores. The pictures go to docs/assets/, all else to a folder that is
removed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
PICTURES = ("curve", "margins")


def sharegen(folder: Path, *arguments: str) -> None:
    """One command, as it is typed in the folder of the study."""
    subprocess.run([sys.executable, "-m", "sharegen", *arguments], cwd=folder, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sharegen(folder, "run", "self-consistency", "-o", "study.jsonl")
        sharegen(folder, "report", "study.jsonl", "--output", "pictures/")
        for picture in PICTURES:
            shutil.copy(folder / "pictures" / f"{picture}.svg", ASSETS / f"study-{picture}.svg")


if __name__ == "__main__":
    main()
