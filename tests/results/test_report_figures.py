"""Pictures: which there are, that files hold them, that the page's are in the page's colours."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sharegen.errors import DataError, UsageError
from sharegen.results.report import figures
from sharegen.results.report.measure import Measured, measure
from sharegen.results.report.outcomes import read_run
from sharegen.results.report.pictures import pictures
from tests.results.report_journals import (
    sample,
    write_code,
    write_lines,
    write_maths,
    write_run_file,
)

pytest.importorskip("matplotlib")


def maths(folder: Path, name: str = "maths", seed: int = 0) -> Measured:
    path = write_maths(folder / f"{name}.jsonl", seed=seed)
    write_run_file(
        path,
        timings={"progress": [[second, 100 * second] for second in range(1, 20)]},
        stats={"prompt_tokens_asked": 1000, "prompt_tokens_computed": 90},
    )
    return measure(read_run(path, name))


def code(folder: Path, name: str = "code", seed: int = 0) -> Measured:
    return measure(read_run(write_code(folder / f"{name}.jsonl", seed=seed), name))


def test_a_run_has_the_pictures_that_it_has_numbers_for(tmp_path: Path) -> None:
    names = [picture.name for picture in pictures([maths(tmp_path)])]
    assert names == ["curve", "solved", "margins", "lengths", "throughput", "sharing"]
    names = [picture.name for picture in pictures([code(tmp_path)])]
    assert names == ["curve", "difficulty", "solved", "lengths"]
    free = measure(read_run(write_lines(tmp_path / "free.jsonl", [sample("p", 0)]), "free"))
    assert [picture.name for picture in pictures([free])] == ["lengths"]


def test_the_numbers_behind_the_pictures(tmp_path: Path) -> None:
    run = code(tmp_path)
    by_name = {picture.name: picture for picture in pictures([run])}
    solved = sum(outcome.right > 0 for outcome in run.run.outcomes)
    rows = by_name["difficulty"].rows
    assert [row[1] for row in rows] == ["introductory", "interview", "competition"]
    assert sum(int(row[3]) for row in rows) == solved
    rows = by_name["solved"].rows
    assert sum(int(row[2]) for row in rows) == len(run.run.outcomes)
    assert int(rows[0][2]) == len(run.run.outcomes) - solved  # "none"
    (row,) = by_name["lengths"].rows
    assert row[1:4] == ("90", "7", "7.0")
    for picture in by_name.values():
        assert all(len(row) == len(picture.header) for row in picture.rows)


def test_margins_count_every_problem_that_voted(tmp_path: Path) -> None:
    run = maths(tmp_path)
    (margins,) = (p for p in pictures([run]) if p.name == "margins")
    right = sum(int(row[2]) for row in margins.rows)
    wrong = sum(int(row[3]) for row in margins.rows)
    voted = [outcome for outcome in run.run.outcomes if outcome.votes]
    assert right == sum(outcome.vote_right is True for outcome in voted)
    assert right + wrong == len(voted)


def test_one_file_or_a_folder_of_them(tmp_path: Path) -> None:
    drawn = pictures([maths(tmp_path), maths(tmp_path, "other", seed=1), code(tmp_path)])
    (sheet,) = figures.save(drawn, tmp_path / "new" / "sheet.PNG")
    assert sheet.read_bytes().startswith(b"\x89PNG")
    (sheet,) = figures.save(drawn, tmp_path / "sheet.svg")
    ElementTree.parse(sheet)
    files = figures.save(drawn, tmp_path / "pictures")
    assert len(files) == 2 * len(drawn) and all(file.stat().st_size > 1000 for file in files)
    for file in files:
        if file.suffix == ".svg":
            ElementTree.parse(file)


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path) -> None:
    drawn = pictures([maths(tmp_path)])
    drawn = drawn[:2]
    first = [path.read_bytes() for path in figures.save(drawn, tmp_path / "a")]
    assert [path.read_bytes() for path in figures.save(drawn, tmp_path / "b")] == first


def test_a_picture_in_the_page(tmp_path: Path) -> None:
    """Well-formed, in the page's colours, with ids of its own; names are text, not formulas."""
    run = maths(tmp_path, "a$b$<&_c")
    for picture in pictures([run, maths(tmp_path, "other", seed=1)]):
        svg = figures.inline_svg(picture)
        root = ElementTree.fromstring(svg)
        colours = set(re.findall(r"#[0-9a-f]{6}\b", svg))
        assert not colours, (picture.name, colours)
        assert "var(--run-0)" in svg and "var(--muted)" in svg
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        assert all(str(name).startswith(f"{picture.name}-") for name in ids)
        assert not re.search(r"https?://(?!www\.w3\.org)", svg)
        assert "a$b$" in "".join(root.itertext())


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        figures.save(pictures([code(tmp_path)]), tmp_path / "file" / "sheet.png")


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'sharegen\[plot\]'"):
        figures.save([], tmp_path)
