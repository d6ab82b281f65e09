from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import DataError
from sharegen.workload.dataset import read_rows

VALUES = [{"question": "é 1?", "n": 1}, {"question": "b", "n": 2}]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in VALUES)


def read(path: Path, split: str = "test") -> list[dict[str, object]]:
    return [row.values for row in read_rows(str(path), None, split).rows]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_jsonl(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "\ufeff" + JSONL.replace("\n", "\r\n\n"))
    assert read(path) == VALUES
    rows = read_rows(str(path), None, "test").rows
    assert [row.where for row in rows] == [f"{path}, line 1", f"{path}, line 3"]
    assert [row.index for row in rows] == [0, 1]


def test_jsonl_keeps_line_separators_inside_strings(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.jsonl", '{"q": "a\u2028b\x85c"}')) == [{"q": "a\u2028b\x85c"}]


def test_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(JSONL.encode()))
    assert read(path) == VALUES
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz: cannot be read"):
        read(path)


def test_json(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.json", json.dumps(VALUES, indent=1))) == VALUES
    assert read(write(tmp_path / "b.json", JSONL)) == VALUES
    assert read(write(tmp_path / "c.json", json.dumps(VALUES[0]))) == VALUES[:1]
    rows = read_rows(str(write(tmp_path / "d.json", '[{"a": 1}, 2]')), None, "test").rows
    assert [row.fault for row in rows] == [None, "is not a JSON object"]
    assert rows[1].where.endswith("item 1")
    with pytest.raises(DataError, match="line 2: malformed JSON"):
        read(write(tmp_path / "e.json", '[{"a": 1},\n'))


def test_text_has_one_prompt_a_line(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.txt", "one\n\n two \n")) == [{"text": "one"}, {"text": " two "}]


def test_csv_and_parquet(tmp_path: Path) -> None:
    import datasets

    texts = [{**row, "n": str(row["n"])} for row in VALUES]
    assert read(write(tmp_path / "a.csv", "question,n\né 1?,1\nb,2\n")) == texts
    datasets.Dataset.from_list(VALUES).to_parquet(str(tmp_path / "a.parquet"))
    assert read(tmp_path / "a.parquet") == VALUES


@pytest.mark.parametrize(
    "name", ["test.jsonl", "gsm8k_test.jsonl", "test-00000-of-00001.jsonl", "x-test.jsonl"]
)
def test_a_folder_has_a_file_per_split(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, JSONL)
    write(tmp_path / "train.jsonl", '{"a": 1}\n')
    write(tmp_path / "README.md", "")
    assert read(tmp_path) == VALUES
    assert read(tmp_path, "train") == [{"a": 1}]
    with pytest.raises(DataError, match=r"split 'dev'.*train\.jsonl"):
        read(tmp_path, "dev")


def test_shards_are_read_in_order(tmp_path: Path) -> None:
    for i in (1, 0):
        write(tmp_path / f"test-0000{i}-of-00002.jsonl", json.dumps(VALUES[i]))
    assert read(tmp_path) == VALUES


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", JSONL), write(tmp_path / "b.jsonl", JSONL)
    c = write(tmp_path / "c.jsonl", JSONL + '{"x": 1}')
    prints = [read_rows(str(path), None, "test").fingerprint for path in (a, b, c)]
    assert prints[0] == prints[1] != prints[2]


def test_empty_and_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no rows"):
        read(write(tmp_path / "a.jsonl", "\n\n"))
    with pytest.raises(DataError, match="has no rows"):
        read(write(tmp_path / "a.json", "[]"))
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "none.jsonl")


def test_apps_is_read_from_its_jsonl_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the hub's local cache, laid out as the hub's client lays it out."""
    from huggingface_hub import constants

    from sharegen.common import hub

    repository = tmp_path / "datasets--codeparrot--apps"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    (snapshot / "train.jsonl").write_text('{"problem_id": 7, "question": "Add."}\n')
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.hub_is_reachable.cache_clear()
    rows = read_rows("codeparrot/apps", None, "train").rows
    assert [row.values for row in rows] == [{"problem_id": 7, "question": "Add."}]
    with pytest.raises(DataError, match="not reachable"):
        read_rows("codeparrot/apps", None, "test")
    hub.hub_is_reachable.cache_clear()


def test_rows_that_cannot_be_read_cost_no_other(tmp_path: Path) -> None:
    deep = '{"a": ' * 500 + "1" + "}" * 500
    odd = [deep, '{"n": ' + "1" * 5_000 + "}", "7", "null", '{"a": nope}', '{"a": "cut']
    lines = "\n".join(['{"q": 1}', *odd, '{"q": 2}'])
    rows = read_rows(str(write(tmp_path / "a.jsonl", lines)), None, "test").rows
    assert [row.values for row in rows if row.fault is None] == [{"q": 1}, {"q": 2}]
    assert [row.index for row in rows if row.fault is not None] == [1, 2, 3, 4, 5, 6]
    whole = "[" + ", ".join(['{"q": 1}', *odd[:4], '{"q": 2}']) + "]"
    rows = read_rows(str(write(tmp_path / "a.json", whole)), None, "test").rows
    assert [row.fault is None for row in rows] == [True, False, False, False, False, True]
    (tmp_path / "b.jsonl").write_bytes(b'{"q": 1}\n{"q": "\xff"}\n')
    rows = read_rows(str(tmp_path / "b.jsonl"), None, "test").rows
    assert [row.fault for row in rows] == [None, "malformed JSON: not UTF-8 text at byte 7"]
    with pytest.raises(DataError, match=r"c\.jsonl, line 1: malformed JSON: nested too deeply"):
        read(write(tmp_path / "c.jsonl", deep))


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The dataset some/table at the revision v1 in the hub's local cache; the hub is far."""
    import datasets
    from huggingface_hub import constants

    from sharegen.common import hub

    repository = tmp_path / "datasets--some--table"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow")
    hub.hub_is_reachable.cache_clear()
    yield snapshot
    hub.hub_is_reachable.cache_clear()


def test_a_csv_of_the_hub_is_text_too(snapshot: Path) -> None:
    (snapshot / "train.csv").write_text("id,question,answer\n1,a,2\n")
    (snapshot / "test.csv").write_text("id,question,answer\n007,Country of Namibia?,NA\n,null,\n")
    rows = read_rows("some/table", None, "test", "v1")
    assert rows.commit == "0" * 40 and [row.values for row in rows.rows] == [
        {"id": "007", "question": "Country of Namibia?", "answer": "NA"},
        {"id": "", "question": "null", "answer": ""},
    ]


def test_images_of_the_hub_are_not_looked_at(
    snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sharegen.workload.files.arrow import BINARY

    monkeypatch.setitem(sys.modules, "PIL", None)
    features = {"q": {"dtype": "string", "_type": "Value"}, "image": {"_type": "Image"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"q": ["a"], "image": [{"bytes": b"no image", "path": None}]})
    pq.write_table(table.replace_schema_metadata(metadata), snapshot / "test.parquet")
    (row,) = read_rows("some/table", None, "test", "v1").rows
    assert row.values == {"q": "a", "image": BINARY}


def test_the_fields_of_a_row_are_named_within_bounds(load: Any) -> None:
    """An object that is keyed by ids is a row with as many fields."""
    with pytest.raises(DataError, match=r"and [0-9,]+ more") as error:
        load([{f"problem/{n}": {"question": "a?"} for n in range(3_000)}])
    assert len(str(error.value)) < 700
