"""Folders that `datasets` itself has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import DataError
from sharegen.workload.configuration import resolve
from sharegen.workload.dataset import read_rows
from sharegen.workload.problem import load_workload

ROWS = [{"question": f"q{n}", "answer": f"#### {n}", "tags": ["a"] * n} for n in range(5)]


@pytest.fixture
def datasets() -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets


def values(folder: Path, split: str = "test") -> list[dict[str, Any]]:
    return [row.values for row in read_rows(str(folder), None, split).rows]


def test_a_dataset_is_one_split(tmp_path: Path, datasets: Any) -> None:
    whole = datasets.Dataset.from_list(ROWS)
    whole.save_to_disk(str(tmp_path / "a"), num_shards=2)
    assert values(tmp_path / "a") == ROWS
    whole.select([3, 1]).save_to_disk(str(tmp_path / "b"))
    assert values(tmp_path / "b") == [ROWS[3], ROWS[1]]
    with pytest.raises(DataError, match=r"few-shot examples come from the split 'train', which"):
        load_workload(resolve("self-consistency", str(tmp_path / "a"), {"model": "a/b"}))


def test_a_dict_of_datasets_has_a_folder_a_split(tmp_path: Path, datasets: Any) -> None:
    parts = {"train": ROWS[:2], "test": ROWS[2:]}
    parts = {name: datasets.Dataset.from_list(rows) for name, rows in parts.items()}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path))
    assert (values(tmp_path), values(tmp_path, "train")) == (ROWS[2:], ROWS[:2])
    with pytest.raises(DataError, match=r"has no split 'dev' \(it has train, test\): use --split"):
        values(tmp_path, "dev")
    job = resolve("self-consistency", str(tmp_path), {"model": "a/b", "few_shot": {"k": 2}})
    assert [problem.fields["question"] for problem in load_workload(job).problems] == [
        "q2", "q3", "q4"
    ]  # fmt: skip


def test_a_folder_that_is_not_whole_is_told(tmp_path: Path, datasets: Any) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path))
    first = read_rows(str(tmp_path), None, "test").fingerprint
    (data,) = tmp_path.glob("*.arrow")
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"data-00000-of-00001\.arrow: "):
        values(tmp_path)
    data.unlink()
    with pytest.raises(DataError, match=r"arrow: cannot be read: No such file"):
        values(tmp_path)
    data.write_bytes(whole)
    assert read_rows(str(tmp_path), None, "test").fingerprint == first
    (tmp_path / "state.json").write_text(json.dumps({}))
    with pytest.raises(DataError, match=r"state\.json: has no list '_data_files'"):
        values(tmp_path)


def test_a_broken_file_ends_no_process(tmp_path: Path, datasets: Any) -> None:
    """The library takes offsets as they stand in the file."""
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path))
    (data,) = tmp_path.glob("*.arrow")
    whole = bytearray(data.read_bytes())
    place = whole.rindex(b"q0q1q2q3q4") - 64  # the offsets of the texts lie before them
    for at in range(place, place + 64, 4):
        broken = bytearray(whole)
        broken[at : at + 4] = b"\xff\xff\xff\x7f"
        data.write_bytes(broken)
        try:
            values(tmp_path)
        except DataError as error:
            assert "\n" not in str(error)
