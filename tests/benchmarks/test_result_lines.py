"""A file of measurements: what of it is refused, and what its import replaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measurement import read, read_all
from benchmarks.result_lines import add_result, import_results, read_results
from sharegen.cli import main
from sharegen.errors import DataError
from tests.benchmarks.test_measurement import ROW, saved

PEER = {"name": "vLLM", "version": "0.24.0", "mode": "default", "tokens_per_second": 1}


def lines_of(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(ROW | row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_what_is_added_is_read(tmp_path: Path) -> None:
    rows = [read(saved(tmp_path)), read(saved(tmp_path, name="b"))]
    path = tmp_path / "new" / "rows.jsonl"
    assert read_results(path) == []
    assert [add_result(row, path) for row in rows] == [path, path]
    assert read_results(path) == rows == read_results(tmp_path)


def test_a_wrong_line_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    path = lines_of(tmp_path, {}, {"commit": "main"})
    folder = tmp_path / "results"
    with pytest.raises(DataError, match=r"rows\.jsonl:2: commit: "):
        list(import_results(path, folder))
    assert not folder.exists()


@pytest.mark.parametrize("name", ["none.jsonl", "rows.json"])
def test_what_is_no_file_of_lines_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.commands import app

    with pytest.raises(SystemExit) as caught:
        main(["import", str(tmp_path / name)], commands=app, name="python -m benchmarks")
    error = capsys.readouterr().err
    assert caught.value.code == 1 and "it is no file of results" in error and error.count("\n") == 1


def test_a_newer_row_replaces_the_older_ones_of_its_card(tmp_path: Path) -> None:
    """With the programs that ran beside those; another card's row stays."""
    folder = tmp_path / "results"
    folder.mkdir()
    saved(folder, name="a", date="2026-11-20", peers=[PEER | {"sitting": "same"}])
    saved(folder, name="b", date="2026-11-21")
    other = {"kind": "gpu", "name": "NVIDIA H100", "power_limit_watts": 700}
    saved(folder, name="c", date="2026-11-20", card=other)
    saved(folder, name="d", date="2026-11-20", row="another")
    path = lines_of(tmp_path, {"name": "new", "numbers": {"tokens_per_second": 2}})
    said = list(import_results(path, folder))
    assert [line.partition(":")[0] for line in said] == ["written", "removed", "removed"]
    assert sorted(each.name for each in read_all(folder)) == ["c", "d", "new"]
    found = read(folder / "new.json")
    assert found.numbers.tokens_per_second == 2
    assert [(peer.name, peer.sitting, peer.note) for peer in found.peers] == [
        ("vLLM", "another", "On 2026-11-20")
    ]
    again = list(import_results(path, folder))
    assert again == ["left out: new: this one or a newer one is there"]


def test_a_file_of_the_same_name_gives_way_to_other_code_alone(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    saved(folder, peers=[PEER | {"sitting": "same"}])
    [written] = import_results(lines_of(tmp_path, {"commit": "7654321"}), folder)
    found = read(folder / "a-row.json")
    assert written.startswith("written") and found.commit == "7654321"
    assert found.peers[0].sitting == "another"


def test_an_older_line_leaves_what_is_newer(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    saved(folder, name="b", date="2026-11-27")
    assert len(list(import_results(lines_of(tmp_path, {}), folder))) == 1
    assert [each.name for each in read_all(folder)] == ["b"]


def test_what_was_written_by_hand_may_name_its_card_in_short(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    card = {"kind": "gpu", "name": "NVIDIA H100", "power_limit_watts": 700}
    saved(folder, name="b", date="2026-11-20", card=card, published="a page")
    saved(folder, name="c", date="2026-11-20", card=card | {"count": 2}, published="a page")
    saved(folder, name="d", date="2026-11-20", card=card)
    saved(folder, name="e", card=card | {"name": "NVIDIA H200"}, published="a page")
    path = lines_of(tmp_path, {"card": card | {"name": "NVIDIA H100 80GB HBM3"}})
    list(import_results(path, folder))
    assert sorted(each.stem for each in folder.iterdir()) == ["a-row", "c", "d", "e"]
