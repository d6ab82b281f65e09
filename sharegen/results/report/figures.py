"""Draws pictures with matplotlib: to PNG and SVG files, and as SVG inside a page.

matplotlib is an extra; everything here asks for it when it is called, not when it is imported.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sharegen.errors import DataError, UsageError
from sharegen.results.report.picture import Picture, Theme
from sharegen.results.run_file import replace_file

SUFFIXES = (".png", ".svg")

PRINT = Theme(
    ink="#1d2126",
    muted="#5d6671",
    line="#dfe3e8",
    right="#2b8a57",
    wrong="#c4483a",
    series=("#2a66b1", "#d0731a", "#2b8a57", "#8b4ba8", "#b0353b", "#1b8a99", "#7a6a1f", "#555f6b"),
)
"""Colours for files: on white paper."""

_VARIABLES = ("ink", "muted", "line", "right", "wrong", *(f"run-{i}" for i in range(8)))
_STAND_INS = {name: f"#fa{index:02x}07" for index, name in enumerate(_VARIABLES)}
_PAGE = Theme(
    **{name: _STAND_INS[name] for name in _VARIABLES[:5]},
    series=tuple(_STAND_INS[name] for name in _VARIABLES[5:]),
)

_SIZE = (5.2, 3.5)  # inches


def require_matplotlib() -> None:
    """Raises UsageError that says what to install where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            "pictures need matplotlib, which is not installed: pip install 'sharegen[plot]'"
        ) from error


def save(pictures: Sequence[Picture], output: Path) -> list[Path]:
    """Write all pictures into one file (.png or .svg), or each as both into a folder.

    Returns the files written. Raises DataError where they cannot be.
    """
    require_matplotlib()
    if output.suffix.lower() in SUFFIXES:
        return [_write(output, _render_sheet(pictures, output.suffix.lower()[1:]))]
    return [
        _write(output / f"{picture.name}.{kind}", _render(picture, PRINT, kind))
        for picture in pictures
        for kind in ("png", "svg")
    ]


def inline_svg(picture: Picture) -> str:
    """The picture as an <svg> element in the page's colours: var(--ink), var(--run-0), ..."""
    svg = _render(picture, _PAGE, "svg", {"svg.fonttype": "none", "font.size": 10.5}).decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{picture.name}-", svg)
    for name, colour in _STAND_INS.items():
        svg = svg.replace(colour, f"var(--{name})")
    width, height = (round(72 * inches) for inches in _SIZE)
    return svg.replace(
        svg[: svg.index(">") + 1],
        f'<svg viewBox="0 0 {width} {height}" aria-hidden="true" '
        'xmlns:xlink="http://www.w3.org/1999/xlink">',
        1,
    )


def _render(
    picture: Picture, theme: Theme, kind: str, style: dict[str, Any] | None = None
) -> bytes:
    with _styled(theme, style) as figure_of:
        figure = figure_of(_SIZE)
        axes = figure.subplots()
        if theme is not _PAGE:  # the page has its own headings
            axes.set_title(picture.title)
        picture.draw(axes, theme)
        return _to_bytes(figure, kind)


def _render_sheet(pictures: Sequence[Picture], kind: str) -> bytes:
    columns = 1 if len(pictures) == 1 else 2
    rows = -(-len(pictures) // columns)
    with _styled(PRINT) as figure_of:
        figure = figure_of((_SIZE[0] * columns, _SIZE[1] * rows))
        grid = figure.subplots(rows, columns, squeeze=False).flat
        for picture in pictures:
            axes = next(grid)
            axes.set_title(picture.title)
            picture.draw(axes, PRINT)
        for axes in grid:
            axes.set_visible(False)
        return _to_bytes(figure, kind)


@contextmanager
def _styled(theme: Theme, style: dict[str, Any] | None = None) -> Any:
    """Gives a maker of figures; the same numbers give the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {  # of matplotlib, whose types name every key
        "axes.axisbelow": True,
        "axes.edgecolor": theme.muted,
        "axes.grid": True,
        "axes.labelcolor": theme.muted,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": theme.ink,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "figure.constrained_layout.h_pad": 0.09,
        "figure.constrained_layout.w_pad": 0.09,
        "font.size": 9.5,
        "grid.color": theme.line,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "legend.labelcolor": theme.ink,
        "lines.linewidth": 2,
        "svg.hashsalt": "sharegen",
        "text.color": theme.ink,
        "text.parse_math": False,  # a file name may hold dollar signs
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not what a user's matplotlibrc says
        matplotlib.rcParams.update(settings | (style or {}))
        yield lambda size: Figure(figsize=size, layout="constrained")


def _to_bytes(figure: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    transparent = figure.axes[0].get_title(loc="left") == ""
    figure.savefig(buffer, format=kind, dpi=200, metadata=metadata, transparent=transparent)
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error
    return path
