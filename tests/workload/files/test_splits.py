from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.errors import DataError
from sharegen.workload.dataset import READERS, read_rows
from sharegen.workload.files.splits import split_files


def found(folder: Path, names: list[str], split: str = "test") -> list[str]:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"q": "a"}\n')
    return [str(path.relative_to(folder)) for path in split_files(folder, split, READERS.keys())]


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["test.jsonl", "train.jsonl"], ["test.jsonl"]),
        (["gsm8k.test.jsonl", "gsm8k.train.jsonl"], ["gsm8k.test.jsonl"]),
        (["v1.0_test.jsonl"], ["v1.0_test.jsonl"]),
        (["v1.0.test.csv.gz"], ["v1.0.test.csv.gz"]),
        (["my data test.tsv"], ["my data test.tsv"]),
        (["GSM8K_Test.JSONL"], ["GSM8K_Test.JSONL"]),
        (["test.v2.jsonl"], ["test.v2.jsonl"]),
        (["math-test-500.json"], ["math-test-500.json"]),
        (["latest.jsonl", "test.jsonl"], ["test.jsonl"]),
        (["._test.jsonl", ".test.jsonl", "a_test.jsonl"], ["a_test.jsonl"]),
        (["test.jsonl.bak", "test.jsonl"], ["test.jsonl"]),
        (
            ["test-00001-of-00002.parquet", "test-00000-of-00002.parquet"],
            ["test-00000-of-00002.parquet", "test-00001-of-00002.parquet"],
        ),
        (["gsm8k-test-00000-of-00001.parquet"], ["gsm8k-test-00000-of-00001.parquet"]),
        (
            ["test-00000-of-00001-0123456789abcdef.parquet"],
            ["test-00000-of-00001-0123456789abcdef.parquet"],
        ),
        (["test-10.jsonl", "test-9.jsonl"], ["test-9.jsonl", "test-10.jsonl"]),
        (["data/test-00000-of-00001.parquet", "README.md"], ["data/test-00000-of-00001.parquet"]),
        (["test/b.jsonl", "test/a.jsonl", "train/a.jsonl"], ["test/a.jsonl", "test/b.jsonl"]),
        (["train-00000-of-00003.csv", "test-00000-of-00001.csv"], ["test-00000-of-00001.csv"]),
    ],
)
def test_the_files_of_a_split(tmp_path: Path, names: list[str], read: list[str]) -> None:
    assert found(tmp_path, names) == read


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["test.old.jsonl", "test.jsonl"], "'test' is read from test.jsonl, and not from test.old"),
        (["test.jsonl", "x_test.csv"], "'test' is read from test.jsonl, and not from x_test.csv"),
        (["test_a.jsonl", "test_b.jsonl"], "'test' is read from test_a.jsonl, test_b.jsonl toge"),
        (["test.jsonl", "test/a.jsonl"], "is read from test.jsonl, and not from test/a.jsonl"),
        (["test-00000-of-00002.csv", "test-00001-of-00002.csv"], None),
        (["test.jsonl", "train.jsonl", "contest.jsonl"], None),
    ],
)
def test_what_is_read_together_or_not_at_all_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: list[str], said: str | None
) -> None:
    found(tmp_path, names)
    assert len(caplog.messages) == (said is not None)
    assert said is None or said in caplog.messages[0]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["test.jsonl", "test.csv"], r"test\.csv, test\.jsonl are all named for .*two formats"),
        (["test.jsonl", "test.jsonl.gz"], "two formats: give the file itself"),
        (["a_test.jsonl", "b_test.csv"], "two formats"),
        (["test.old.jsonl", "test.new.jsonl"], r"test\.old\.jsonl looks like a copy"),
        (["a_test.jsonl", "a_test (copy).jsonl", "b_test.jsonl"], None),
        (["test-00000-of-00003.csv", "test-00002-of-00003.csv"], "3 parts of 'test' number 1 is"),
        (["test-00000-of-00002.csv"], "2 parts of 'test' number 1 is missing"),
        (["a-test-00000-of-00001.csv", "b-test-00000-of-00001.csv"], "parts of different files"),
        (["train.jsonl", "dev.jsonl"], r"no file of the split 'test' \(it has dev\.jsonl, train"),
        (["notes.md"], r"no file of the split 'test' \(it has no data files\)"),
        ([f"{n}.jsonl" for n in range(3_000)], "and 2,980 more"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(
    tmp_path: Path, names: list[str], said: str | None
) -> None:
    if said is None:
        assert found(tmp_path, names) == ["a_test.jsonl", "b_test.jsonl"]
        return
    with pytest.raises(DataError, match=said):
        found(tmp_path, names)


def test_the_rows_of_all_its_files_are_one_split(tmp_path: Path) -> None:
    found(tmp_path, ["data/test_a.jsonl", "data/test_b.jsonl"])
    rows = read_rows(str(tmp_path), None, "test").rows
    assert [row.index for row in rows] == [0, 1] and "test_b.jsonl, line 1" in rows[1].where
