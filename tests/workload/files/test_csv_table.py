from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import DataError
from sharegen.workload.dataset import Row, read_rows

HEAD = "id,question,answer\n"


def read(path: Path, content: str | bytes) -> list[Row]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_rows(str(path), None, "test").rows)


@pytest.fixture
def csv(tmp_path: Path) -> Any:
    return lambda content: read(tmp_path / "a.csv", content)


@pytest.mark.parametrize(
    "cell",
    [
        "007", "0", "-0", "+1", "1.0", "1.50", "1e5", "0x1F", "1_000", "NA", "N/A", "n/a", "None",
        "NULL", "null", "nan", "NaN", "-nan", "inf", "#N/A", "<NA>", "True", "false", "yes",
        "12345678901234567890123", "2024-01-31", "01/02/03", "12:30", "5%", "$9", " padded ", "é",
        "[1, 2]", '{"a": 1}', "1,5", 'say "hi"', "two\nlines", "two\r\nlines", "old\rmac", "'7",
        "# no comment", "a\tb", "=1+1", "\\N", "",
    ],
)  # fmt: skip
def test_a_cell_is_text_as_it_stands_there(csv: Any, cell: str) -> None:
    import csv as library
    import io

    for quoting in (library.QUOTE_MINIMAL, library.QUOTE_ALL):
        text = io.StringIO()
        writer = library.writer(text, quoting=quoting)
        writer.writerows([["q", "a"], [cell, "7"], ["7", cell]])
        rows = csv(text.getvalue())
        assert [row.values for row in rows] == [{"q": cell, "a": "7"}, {"q": "7", "a": cell}]


def test_a_column_may_hold_anything_after_any_number_of_rows(csv: Any) -> None:
    rows = csv("n\n" + "1\n" * 12_000 + "none\n")
    assert [rows[0].values, rows[-1].values] == [{"n": "1"}, {"n": "none"}]
    assert len(rows) == 12_001 and rows[-1].where.endswith("line 12002")


def test_a_row_is_found_by_the_line_that_it_begins_in(csv: Any) -> None:
    rows = csv(HEAD + '1,"a\nb",x\n\n2,c,y\n3,"d\n\ne",z')
    places = [row.where.rpartition(", ")[2] for row in rows]
    assert places == ["lines 2 to 3", "line 5", "lines 6 to 8"]
    assert rows[2].values == {"id": "3", "question": "d\n\ne", "answer": "z"}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", ["", "1"])
def test_lines_end_as_anywhere(csv: Any, end: str, last: str) -> None:
    """With or without an end of the last one."""
    content = end.join(["q,a", "x,1", "y,2"]) + (end if last else "")
    assert [row.values for row in csv(content)] == [{"q": "x", "a": "1"}, {"q": "y", "a": "2"}]


def test_a_carriage_return_without_quotes_is_text_where_lines_end_otherwise(csv: Any) -> None:
    """As pandas writes it."""
    assert csv("q,a\nx\ry,1\n")[0].values == {"q": "x\ry", "a": "1"}


def test_a_line_end_in_quotes_does_not_say_how_lines_end(csv: Any) -> None:
    """As spreadsheets write it in the form of old Macs."""
    rows = csv('q,a\rx,1\r"He said ""two"",\nor three?",2\ry,3\r')
    assert [row.values["q"] for row in rows] == ["x", 'He said "two",\nor three?', "y"]


def test_tabs_and_quotes_in_tsv(tmp_path: Path) -> None:
    (row,) = read(tmp_path / "a.tsv", 'q\ta\n"a ""b"", c"\t5\'10" tall\n')
    assert row.values == {"q": 'a "b", c', "a": "5'10\" tall"}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("2,b", "has 2 cells, and the first line names 3"),
        ("b", "has 1 cell, and"),
        ("2,b,5,6", "has 4 cells"),
        ('2,"b" c,5', "goes on after its closing quote"),
        (b"2,caf\xe9,5", "is not UTF-8 text in cell 2 (the byte 0xe9)"),
        ("b,c,d\n".encode("utf-16-le")[:-2], "holds NUL bytes"),
        ("2,N\0a\0m\0i\0b\0i\0a\0?\0,5", "holds NUL bytes"),
        (b"\0" * 512 + b",,", "holds NUL bytes"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_and_costs_no_other(
    csv: Any, line: str | bytes, fault: str
) -> None:
    middle = line if isinstance(line, bytes) else line.encode()
    rows = csv(HEAD.encode() + "1,é,4\n".encode() + middle + b"\n3,c,6\n")
    good = [row.values["question"] for row in rows if row.fault is None]
    (bad,) = [row for row in rows if row.fault is not None]
    assert good == ["é", "c"] and fault in bad.fault and bad.where.endswith("a.csv, line 3")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('q,a\nx,1\n"y,2\nz,3\n', r"a\.csv, line 3: a cell begins with a quote that is not closed"),
        ("q,a,q\nx,1,2\n", r"line 1: two columns are called 'q'"),
        (b"caf\xe9,a\nx,1\n", r"line 1: is not UTF-8 text in cell 1 \(the byte 0xe9\)"),
        ("q,a\n", "is empty: it has no rows"),
        ("\n\n", "is empty"),
        ("", "is empty"),
        (b"q\ncaf\xe9\n", r"line 2: is not UTF-8 text"),
    ],
)
def test_what_is_no_table_is_refused_by_its_line(csv: Any, content: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        csv(content)


def test_a_column_without_a_name_goes_by_its_place(csv: Any) -> None:
    """As pandas writes an index."""
    assert csv(",q\n0,x\n")[0].values == {"column 1": "0", "q": "x"}


def test_a_cell_may_be_long(csv: Any) -> None:
    assert csv("q,a\n" + "x" * 300_000 + ",1\n")[0].values["q"] == "x" * 300_000
