"""A table of arbitrary text is read back the same from every kind of file that can hold it."""

from __future__ import annotations

import csv
import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sharegen.workload.dataset import read_rows

Table = list[dict[str, str]]

# A few NUL bytes are text; many in a row of a CSV are a file that is broken.
CELLS = st.text(st.characters(exclude_categories=["Cs"]), max_size=7) | st.sampled_from(
    ["NA", "None", "null", "nan", "007", "1e5", "1.0", "True", "-0", "1" * 23, "2024-01-01", "[]",
     "#", "'", '"', '""', "a\r", "\rb", "a\rb", "a\r\nb", "\n", "a\u2028b", "\x85", "\ufeff", " ",
     "\t", "a,b", ";", "\\", "\\n", "\0", "\x1a", "\U0010ffff", "\ufffe"]
)  # fmt: skip
# What a file begins with tells its encoding: a mark, or a NUL after that of UTF-16.
NAMES = st.lists(
    CELLS.filter(lambda name: name[:1] not in ("", "\ufeff", "\0")),
    min_size=1,
    max_size=4,
    unique=True,
)


@st.composite
def tables(draw: Any) -> Table:
    names = draw(NAMES)
    rows = st.lists(st.tuples(*[CELLS] * len(names)), min_size=1, max_size=5)
    return [dict(zip(names, cells, strict=True)) for cells in draw(rows)]


def delimited(delimiter: str, **how: Any) -> Callable[[Path, Table], None]:
    def write(path: Path, table: Table) -> None:
        with path.open("w", newline="", encoding=how.get("encoding", "utf-8")) as file:
            ends = how.get("ends", "\r\n")
            quoting = how.get("quoting", csv.QUOTE_MINIMAL)
            writer = csv.writer(file, delimiter=delimiter, lineterminator=ends, quoting=quoting)
            writer.writerow(table[0])
            writer.writerows(row.values() for row in table)

    return write


def jsonl(encoding: str, ascii_only: bool) -> Callable[[Path, Table], None]:
    def write(path: Path, table: Table) -> None:
        lines = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in table)
        content = lines.encode(encoding)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    return write


def as_json(path: Path, table: Table) -> None:
    path.write_text(json.dumps(table, indent=1), "utf-8")


def parquet(path: Path, table: Table) -> None:
    pq.write_table(pa.Table.from_pylist(table), path, row_group_size=2)


WAYS: Sequence[tuple[str, Callable[[Path, Table], None]]] = [
    ("a.csv", delimited(",")),
    ("b.csv", delimited(",", ends="\n", quoting=csv.QUOTE_ALL)),
    ("c.csv", delimited(",", encoding="utf-16")),
    ("a.tsv", delimited("\t", quoting=csv.QUOTE_NONNUMERIC)),
    ("b.tsv", delimited("\t", encoding="utf-8-sig")),
    ("a.jsonl", jsonl("utf-8", ascii_only=False)),
    ("b.jsonl.gz", jsonl("utf-32", ascii_only=True)),
    ("c.jsonl", jsonl("utf-8-sig", ascii_only=True)),
    ("d.jsonl", jsonl("utf-16", ascii_only=False)),
    ("a.json", as_json),
    ("a.parquet", parquet),
]


@given(tables())
@example([{"q": ""}])
@example([{"q": "a\r", "a": "\rb"}, {"q": "", "a": ""}])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_table_of_any_text_is_the_same_from_every_kind_of_file(table: Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, write in WAYS:
            path = Path(folder) / name
            write(path, table)
            assert [row.values for row in read_rows(str(path), None, "test").rows] == table, name
