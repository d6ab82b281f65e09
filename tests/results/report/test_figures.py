"""Pictures: which there are, that files hold them, that the page's are in the page's colours."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sharegen.errors import DataError
from sharegen.results.report import axes, figures, svg
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
    (sheet,) = figures.save(drawn, tmp_path / "new" / "sheet.SVG")
    root = ElementTree.parse(sheet).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}g")) == len(drawn)
    assert all(picture.title in "".join(root.itertext()) for picture in drawn)
    files = figures.save(drawn, tmp_path / "pictures")
    assert len(files) == len(drawn) and all(file.stat().st_size > 1000 for file in files)
    for file in files:
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
        drawn = figures.inline_svg(picture)
        root = ElementTree.fromstring(drawn)
        colours = set(re.findall(r"#[0-9a-f]{6}\b", drawn))
        assert not colours, (picture.name, colours)
        assert "var(--run-0)" in drawn and "var(--muted)" in drawn
        assert not [element for element in root.iter() if element.get("id")]
        assert not re.search(r"https?://(?!www\.w3\.org)", drawn)
        assert "a$b$" in "".join(root.itertext())


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        figures.save(pictures([code(tmp_path)]), tmp_path / "file" / "sheet.png")


def places(svg: str) -> list[tuple[float, float]]:
    """Every point of lines, areas, boxes and words in a picture."""
    found = []
    for element in ElementTree.fromstring(svg).iter():
        if element.tag.endswith("path"):
            numbers = [float(n) for n in re.findall(r"-?[\d.]+", element.get("d", ""))]
            if not re.search("[HVh]", element.get("d", "")):
                found += list(zip(numbers[::2], numbers[1::2], strict=True))
        elif element.tag.endswith(("rect", "text")):
            x, y = (float(element.get(name, 0)) for name in "xy")
            wide, high = (float(element.get(name, 0)) for name in ("width", "height"))
            found += [(x, y), (x + wide, y + high)]
    return found


def test_nothing_lies_outside_its_picture(tmp_path: Path) -> None:
    several = [maths(tmp_path, f"run{seed}", seed=seed) for seed in range(9)]
    for runs in ([maths(tmp_path, "one")], several[:2], several, [code(tmp_path)]):
        for picture in pictures(runs):
            found = places(figures.inline_svg(picture))
            assert len(found) > 10
            for x, y in found:
                assert -0.5 <= x <= svg.WIDTH + 0.5 and -0.5 <= y <= svg.HEIGHT + 0.5, picture.name


def test_the_smaller_bar_of_what_sharing_saved_is_seen(tmp_path: Path) -> None:
    path = write_maths(tmp_path / "run.jsonl")
    write_run_file(path, stats={"prompt_tokens_asked": 3_205_440, "prompt_tokens_computed": 1_137})
    (picture,) = (p for p in pictures([measure(read_run(path, "run"))]) if p.name == "sharing")
    root = ElementTree.fromstring(figures.inline_svg(picture))
    widths = [float(each.get("width", 0)) for each in root.iter() if each.tag.endswith("rect")]
    assert len(widths) == 2 and min(widths) == 3 and max(widths) > 200
    assert "1,137 computed (2,819.2x fewer)" in "".join(root.itertext())


@pytest.mark.parametrize(
    ("high", "whole", "ticks"),
    [
        (1.0, False, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.83, False, [0, 0.2, 0.4, 0.6, 0.8]),
        (3.2, True, [0, 1, 2, 3]),
        (57.0, True, [0, 20, 40]),
        (0.4, True, [0]),
        (0.0, False, [0]),
    ],
)
def test_ticks_are_round(high: float, whole: bool, ticks: list[float]) -> None:
    assert axes.nice(high, whole=whole) == pytest.approx(ticks)


def test_no_picture_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert figures.save(pictures([code(tmp_path)]), tmp_path / "sheet.svg")
