"""`python -m benchmarks tables`: what is made of the measurements, by file."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measurement import RESULTS, read_all
from benchmarks.tables.headline import pictures, readme
from benchmarks.tables.markdown import with_table
from benchmarks.tables.page import page
from benchmarks.tables.popular import popular_table
from sharegen.common.files import replace_file

ROOT = Path(__file__).parents[2]
MODELS = Path("docs") / "reference" / "models.md"


def made(results: Path = RESULTS, root: Path = ROOT) -> dict[Path, str]:
    """What each file under `root` should hold. Raises DataError."""
    measured = read_all(results)
    text = (root / "README.md").read_text(encoding="utf-8")
    models = (root / MODELS).read_text(encoding="utf-8")
    return {
        Path("docs") / "benchmarks.md": page(measured),
        Path("README.md"): readme(text, measured),
        MODELS: with_table(models, "popular", popular_table(measured), str(MODELS)),
        **pictures(measured),
    }


def write_tables() -> list[Path]:
    """Write what is not as it should be. Returns these files."""
    changed = []
    for name, text in made().items():
        path = ROOT / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            replace_file(path, text.encode())
            changed.append(name)
    return changed
