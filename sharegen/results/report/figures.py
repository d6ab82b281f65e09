"""Pictures as SVG files, one of all or one each, and as SVG inside a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sharegen.common.files import make_folders, replace_file
from sharegen.errors import DataError, UsageError
from sharegen.results.report.picture import Picture, Theme
from sharegen.results.report.svg import HEIGHT, WIDTH, picture_svg

SUFFIX = ".svg"

PRINT = Theme(
    ink="#1d2126",
    muted="#5d6671",
    line="#dfe3e8",
    right="#2b8a57",
    wrong="#c4483a",
    series=("#2a66b1", "#d0731a", "#2b8a57", "#8b4ba8", "#b0353b", "#1b8a99", "#7a6a1f", "#555f6b"),
)
"""Colours for files: on white paper."""

_PAGE = Theme(
    **{name: f"var(--{name})" for name in ("ink", "muted", "line", "right", "wrong")},
    series=tuple(f"var(--run-{index})" for index in range(8)),
)

_FONT = "font-family:system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif"


def check_plot(path: Path) -> None:
    """Raise UsageError for a `--plot` that cannot be written: before minutes of measuring."""
    if path.suffix.lower() != SUFFIX:
        raise UsageError(f"--plot {path}: it must end in {SUFFIX}")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"--plot {path}: it must be a file in a folder that is there")


def save(pictures: Sequence[Picture], output: Path) -> list[Path]:
    """Write all pictures into one file (.svg), or each into one in a folder.

    Returns the files written. Raises DataError where they cannot be.
    """
    if output.suffix.lower() == SUFFIX:
        return [_write(output, pictures)]
    return [_write(output / f"{picture.name}{SUFFIX}", [picture]) for picture in pictures]


def inline_svg(picture: Picture) -> str:
    """The picture as an <svg> element in the page's colours: var(--ink), var(--run-0), ..."""
    inside = picture_svg(picture, _PAGE, titled=False)  # the page has its own headings
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{inside}</svg>'


def _sheet(pictures: Sequence[Picture]) -> str:
    """All pictures side by side, two in a row."""
    columns = 1 if len(pictures) == 1 else 2
    width, height = WIDTH * columns, HEIGHT * -(-len(pictures) // columns)
    places = (divmod(number, columns) for number in range(len(pictures)))
    parts = (
        f'<g transform="translate({WIDTH * column} {HEIGHT * row})">'
        f"{picture_svg(picture, PRINT, titled=True)}</g>"
        for picture, (row, column) in zip(pictures, places, strict=True)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{2 * width}" height="{2 * height}" style="{_FONT}">'
        f'<rect width="100%" height="100%" style="fill:#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _write(path: Path, pictures: Sequence[Picture]) -> Path:
    try:
        make_folders(path.parent)
        replace_file(path, _sheet(pictures).encode())
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error
    return path
