"""Files of results: what is refused, and what one line says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer import BadParameter

from benchmarks.measurement import RESULTS, read, read_all, write
from benchmarks.options import parse_commit
from sharegen.errors import DataError

ROW: dict[str, Any] = {
    "name": "a-row",
    "row": "llama3-8b-gsm8k-bf16",
    "kind": "job",
    "command": "sharegen bench decode",
    "date": "2026-11-26",
    "commit": "1234567",
    "versions": {
        "sharegen": "0.1.0", "torch": "2.11", "triton": "3.6", "transformers": "5.17",
        "driver": "580", "cuda": "13.0",
    },
    "card": {"kind": "gpu", "name": "NVIDIA H200", "power_limit_watts": 700},
    "shape": "llama3-8b",
    "workload": {"name": "gsm8k", "problems": 96, "samples": 32, "output": 128},
    "precision": "bf16",
    "numbers": {"tokens_per_second": 35000},
}  # fmt: skip


def saved(folder: Path, **changes: Any) -> Path:
    """A file with a row that is right but for the changes; None takes a key out."""
    row = {key: value for key, value in (ROW | changes).items() if value is not ...}
    path = folder / f"{row['name']}.json"
    path.write_text(json.dumps(row), encoding="utf-8")
    return path


def test_every_file_of_the_project_is_in_the_schema() -> None:
    assert len(read_all()) == len(list(RESULTS.glob("*.json")))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = read(saved(tmp_path))
    assert read(write(found, tmp_path / "new" / "folder")) == found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"command": ...}, "command: it is missing"),
        ({"versions": ...}, "versions: it is missing"),
        ({"versions": {"sharegen": "0.1.0"}}, "versions.torch: it is missing"),
        ({"command": None}, "command is null: say why in `unknown`"),
        ({"command": None, "unknown": {"command": "lost"}}, "`published` must say where"),
        ({"unknown": {"commit": "lost"}}, "`unknown` has commit, which is known"),
        ({"commit": "main"}, "commit: String should match pattern"),
        ({"date": "yesterday"}, "date: "),
        ({"numbers": {}}, "numbers: it has no number"),
        ({"numbers": {"tokens_per_second": 0}}, "numbers.tokens_per_second: "),
        ({"numbers": {"tokens_per_second": 1, "speed": 2}}, "numbers.speed: "),
        ({"comand": "x"}, "comand: "),
    ],
)
def test_a_file_that_lacks_something_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(saved(tmp_path, **changes))
    line = str(caught.value)
    assert line.startswith(str(tmp_path / "a-row.json")) and said in line and "\n" not in line


@pytest.mark.parametrize(
    "where", [{}, {"sitting": "same", "source": "https://a.b"}, {"source": "a friend"}]
)
def test_a_peer_s_number_needs_one_source(tmp_path: Path, where: dict[str, str]) -> None:
    peer = {"name": "vLLM", "version": "0.24.0", "mode": "default", "tokens_per_second": 1}
    with pytest.raises(DataError, match=r"peers\.0"):
        read(saved(tmp_path, peers=[peer | where]))


def test_no_json_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.json: Invalid JSON"):
        read(path)
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "none.json")


def test_a_file_has_the_name_of_its_row(tmp_path: Path) -> None:
    path = saved(tmp_path).rename(tmp_path / "other.json")
    with pytest.raises(DataError, match="it must be the file's, 'other'"):
        read(path)


def test_of_a_row_and_a_card_the_newest_stands(tmp_path: Path) -> None:
    saved(tmp_path, name="a-old", date="2026-11-20", numbers={"tokens_per_second": 1})
    saved(tmp_path, name="b-new", numbers={"tokens_per_second": 2})
    saved(tmp_path, name="c-old", date="2026-11-21", numbers={"tokens_per_second": 3})
    card = {"kind": "gpu", "name": "NVIDIA H100", "power_limit_watts": 700}
    saved(tmp_path, name="d-card", date="2026-11-21", card=card)
    assert [row.name for row in read_all(tmp_path)] == ["d-card", "b-new"]


def test_other_programs_of_an_older_sitting_stand_in(tmp_path: Path) -> None:
    peer = {"name": "vLLM", "version": "0.24.0", "mode": "default", "tokens_per_second": 1}
    published = peer | {"name": "another", "source": "https://a.b"}
    saved(tmp_path, name="a", date="2026-11-20", peers=[peer | {"sitting": "same"}])
    saved(tmp_path, name="b", date="2026-11-21", peers=[published])
    saved(tmp_path, name="c", date="2026-11-22")
    [found] = read_all(tmp_path)
    assert found.name == "c"
    assert [(p.name, p.sitting, p.note) for p in found.peers] == [
        ("vLLM", "another", "On 2026-11-20")
    ]
    saved(tmp_path, name="d", date="2026-11-23", peers=[peer | {"sitting": "same"}])
    assert [p.sitting for p in read_all(tmp_path)[0].peers] == ["same"]


@pytest.mark.parametrize("text", ["", "x", "123456", "HEAD", "1234567 "])
def test_what_is_no_commit_is_refused_before_anything_is_measured(text: str) -> None:
    with pytest.raises(BadParameter, match="7 to 40 hexadecimal digits"):
        parse_commit(text)


def test_a_commit_may_have_changes() -> None:
    assert parse_commit("1234567+changes") == "1234567+changes"
