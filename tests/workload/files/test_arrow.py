from __future__ import annotations

import datetime
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sharegen.errors import DataError
from sharegen.workload.configuration import resolve
from sharegen.workload.dataset import Row, read_rows
from sharegen.workload.files.arrow import BINARY
from sharegen.workload.problem import load_workload


def read(path: Path, table: Any, **how: Any) -> list[Row]:
    pq.write_table(pa.table(table) if isinstance(table, dict) else table, path, **how)
    return list(read_rows(str(path), None, "test").rows)


def values(path: Path, table: Any, **how: Any) -> list[dict[str, Any]]:
    return [row.values for row in read(path, table, **how)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.parquet"


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def test_calls_and_tools_have_no_parameters_of_other_rows(path: Path) -> None:
    """Whose keys Arrow holds as nulls in every row."""
    rows: list[dict[str, Any]] = [
        {
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "tool_calls": [called("weather", city="Rome", days=[1, 2])]},
                {"role": "tool", "content": "sun", "tool_call_id": "1"},
            ],
            "tools": [tool("weather", city={"type": "string", "enum": ["Rome", "Oslo"]})],
        },
        {
            "messages": [
                {"role": "user", "content": "Add"},
                {"role": "assistant", "tool_calls": [called("add", a=1, b={"c": 0})]},
                {"role": "tool", "content": "1"},
            ],
            "tools": [tool("add", a={"type": "integer", "minimum": 0}), tool("stop")],
        },
    ]
    found = values(path, pa.Table.from_pylist(rows))
    assert found == rows
    job = resolve("prompts", str(path), {"model": "a/b"})
    one, two = load_workload(job).problems
    assert one.prompt.options.tools == rows[0]["tools"]
    assert two.prompt.content[1]["tool_calls"] == rows[1]["messages"][1]["tool_calls"]


@pytest.mark.parametrize("kind", [pa.list_(pa.null()), pa.list_(pa.string())])
def test_turns_with_empty_lists_of_calls(path: Path, kind: pa.DataType) -> None:
    turn = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", kind)])
    turns = [
        {"role": "user", "content": "Hi", "tool_calls": []},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "Bye", "tool_calls": None},
    ]
    read(path, {"messages": pa.array([turns], pa.list_(turn))})
    (problem,) = load_workload(resolve("prompts", str(path), {"model": "a/b"})).problems
    assert [turn["content"] for turn in problem.prompt.content] == ["Hi", "", "Bye"]


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (pa.array(["007"]), "007"),
        (pa.array(["a"], pa.large_string()), "a"),
        (pa.array(["a"], pa.string_view()), "a"),
        (pa.array(["a"]).dictionary_encode(), "a"),
        (pa.array([2**62]), 2**62),
        (pa.array([Decimal("1.50")]), Decimal("1.50")),
        (pa.array([datetime.date(2024, 1, 31)]), datetime.date(2024, 1, 31)),
        (pa.array([None], pa.string()), None),
        (pa.array([["a", None]]), ["a", None]),
        (pa.array([{"a": 1, "b": None}]), {"a": 1}),
        (pa.array([{"a": {"b": None}}]), {"a": {}}),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), {"k": 1}),
        (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), [1, 2]),
        (
            pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": null, "b": [1]}'])),
            {"a": None, "b": [1]},
        ),
        (pa.array([b"\xff"]), BINARY),
        (pa.array([b"abcd"], pa.binary(4)), BINARY),
        (pa.array([b"a"], pa.large_binary()), BINARY),
        (pa.array([[b"a"]]), BINARY),
        (pa.array([{"bytes": b"\xff", "path": "a.png"}]), BINARY),
        (pa.array([[{"bytes": None, "path": "a.png"}]],
                  pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))), BINARY),
        (pa.array([{"type": "image", "image": b"\xff", "text": None}]),
         {"type": "image", "image": BINARY}),
    ],
    ids=str,
)  # fmt: skip
def test_values_of_every_kind(path: Path, array: pa.Array, value: Any) -> None:
    assert values(path, {"q": ["a"], "v": array}) == [{"q": "a", "v": value}]


def test_images_beside_text_need_no_library_of_images(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `datasets` writes them, with their kind in the file's metadata."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    features = {"q": {"dtype": "string", "_type": "Value"}, "image": {"_type": "Image"}}
    images = pa.array([{"bytes": b"\x89PNG", "path": None}] * 2)
    table = pa.table({"q": ["a", "b"], "image": images}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    assert [row["q"] for row in values(path, table)] == ["a", "b"]


def test_bytes_are_refused_by_name_where_they_are_asked_for(path: Path) -> None:
    read(path, {"question": [b"\xff", b"a"], "text": ["x", "y"]})
    assert len(load_workload(resolve("prompts", str(path), {"model": "a/b"})).problems) == 2
    with pytest.raises(
        DataError, match="the field 'question', which is of type Binary: that is no"
    ):
        load_workload(
            resolve("self-consistency", str(path), {"model": "a/b", "few_shot": {"k": 0}})
        )


def test_a_text_that_is_none_is_that_rows_fault(path: Path) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    good, bad = read(path, {"q": broken})
    assert good.values == {"q": "a"}
    assert bad.fault == "the column 'q' is not UTF-8 text at byte 0" and bad.where.endswith("row 2")


def test_rows_of_many_groups_are_read_in_order(path: Path) -> None:
    found = values(path, {"n": list(range(2_500))}, row_group_size=700)
    assert [row["n"] for row in found] == list(range(2_500))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: it has no rows"),
        (b"PAR1", "is not Parquet that can be read"),
        (b"no Parquet at all, though long enough for one", "is not Parquet that can be read"),
    ],
)
def test_what_is_no_parquet_is_told_in_a_line(path: Path, content: bytes, said: str) -> None:
    path.write_bytes(content)
    with pytest.raises(DataError, match=said) as error:
        read_rows(str(path), None, "test")
    assert "\n" not in str(error.value)


def test_a_table_without_rows_or_with_two_columns_of_a_name(path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.parquet: is empty: it has no rows"):
        read(path, {"q": pa.array([], pa.string())})
    twice = pa.table([pa.array(["a"]), pa.array(["b"])], names=["q", "q"])
    with pytest.raises(DataError, match=r"a\.parquet: two columns are called 'q'"):
        read(path, twice)
    good = values(path, {"q": ["a"] * 3})
    whole = path.read_bytes()
    assert len(good) == 3
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="is not Parquet"):
        read_rows(str(path), None, "test")
