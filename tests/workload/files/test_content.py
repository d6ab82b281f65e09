from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from sharegen.errors import DataError
from sharegen.workload.dataset import DatasetRows, Row, read_rows
from sharegen.workload.files import content
from sharegen.workload.files.content import opened, read_text


def read(path: Path, content: bytes) -> list[Row]:
    path.write_bytes(content)
    return list(read_rows(str(path), None, "test").rows)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("a.txt", "é one\ntwo 😀\n", [{"text": "é one"}, {"text": "two 😀"}]),
        ("a.jsonl", '{"q": "é"}\r\n{"q": "\u0a0a"}', [{"q": "é"}, {"q": "\u0a0a"}]),
        ("a.json", '[{"q": "é"},\n {"q": "😀"}]', [{"q": "é"}, {"q": "😀"}]),
        ("a.csv", 'q,a\né,"1\n2"\n', [{"q": "é", "a": "1\n2"}]),
        ("a.tsv", "q\ta\n😀\t\n", [{"q": "😀", "a": ""}]),
    ],
)
def test_a_byte_order_mark_tells_the_encoding(
    tmp_path: Path, encoding: str, name: str, text: str, values: list[dict[str, str]]
) -> None:
    """As a spreadsheet and PowerShell's `>` write it."""
    marked = ("\ufeff" if encoding.endswith("be") else "") + text
    whole = marked.encode(encoding)
    assert [row.values for row in read(tmp_path / name, whole)] == values
    packed = tmp_path / f"{name}.gz"
    assert [row.values for row in read(packed, gzip.compress(whole))] == values


@pytest.mark.parametrize(
    ("name", "whole", "said"),
    [
        ("a.txt", "é one".encode("latin-1"), "line 1: is not UTF-8 text at byte 0"),
        ("a.txt", "one two".encode("utf-16-le"), "line 1: holds NUL bytes: it is UTF-16 without"),
        ("a.jsonl", '{"q": 1}'.encode("utf-16-be"), "line 1: holds NUL bytes"),
        ("a.json", '[{"q": 1}]'.encode("utf-16-le"), "a.json, line 1: holds NUL bytes"),
        ("a.csv", "q,a\n1,2\n".encode("utf-16-le"), "line 1: holds NUL bytes"),
        ("a.tsv", "q\ta\n1\t2\n".encode("utf-16-be"), "line 1: holds NUL bytes"),
        ("a.json", b'[{"q": 1},\n{"q": "\xe9"}]', "line 2: is not UTF-8 text at byte 18"),
        ("a.txt", b"\xff\xfeo\0n\0e", "begins as UTF-16, and not all of it is"),
        ("a.txt", b"\xff\xfe" + b"\x00\xd8a\x00", "begins as UTF-16, and not all of it is"),
        ("a.csv", b"\xfe\xff\0q\0\n\0", "begins as UTF-16"),
        ("a.jsonl.gz", b"no gzip", "cannot be read: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(b'{"q": 1}', mtime=0)[:-9], "cannot be read"),
        ("a.txt.gz", gzip.compress(b"x" * 999, mtime=0)[:12] + b"\xff" * 30, "cannot be read"),
        ("a.xlsx", b"PK", "unknown kind of file: give one of .jsonl, .ndjson, .json, .txt, .csv"),
    ],
)
def test_what_is_no_text_is_refused_by_its_place(
    tmp_path: Path, name: str, whole: bytes, said: str
) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path / name, whole)
    assert said in str(error.value) and name in str(error.value)


def test_a_file_in_two_encodings_loses_the_lines_of_the_second(tmp_path: Path) -> None:
    """PowerShell's `>>` adds UTF-16 to a file in UTF-8."""
    rows = read(tmp_path / "a.txt", b"one\n" + "two\n".encode("utf-16-le") + b"\ncaf\xe9\nlast")
    good = [row.values["text"] for row in rows if row.fault is None]
    faults = [row.fault for row in rows if row.fault is not None]
    assert good == ["one", "last"] and "holds NUL bytes" in faults[0]
    assert faults[-1] == "is not UTF-8 text at byte 3"


def test_files_that_were_joined_have_a_mark_in_the_middle(tmp_path: Path) -> None:
    rows = read(tmp_path / "a.jsonl", '{"q": 1}\n\ufeff{"q": 2}\n'.encode("utf-8-sig"))
    assert [row.values for row in rows] == [{"q": 1}, {"q": 2}]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_json_and_text_end_as_anywhere(tmp_path: Path, end: str) -> None:
    lines = ['{"q": "a\u2028b\x85"}', '{"q": "c"}']
    for last in ("", end):
        rows = read(tmp_path / "a.jsonl", (end.join(lines) + last).encode())
        assert [row.values for row in rows] == [{"q": "a\u2028b\x85"}, {"q": "c"}]
        rows = read(tmp_path / "a.txt", (end.join(["a\u2028b", " c"]) + last).encode())
        assert [row.values for row in rows] == [{"text": "a\u2028b"}, {"text": " c"}]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "txt", "parquet"])
def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path, kind: str) -> None:
    """Whatever its time stamp says: cp -p, rsync -t and tar keep it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / f"a.{kind}"

    def written(word: str) -> DatasetRows:
        if kind == "parquet":
            pq.write_table(pa.table({"text": [word]}), path)
        else:
            row = f'{{"text": "{word}"}}\n'
            text = {"txt": word, "jsonl": row, "json": f"[{row}]"}.get(kind, f"text\n{word}\n")
            path.write_text(text)
        os.utime(path, (1_700_000_000, 1_700_000_000))
        return read_rows(str(path), None, "test")

    first, second = written("one"), written("two")
    assert [rows.rows[0].values["text"] for rows in (first, second)] == ["one", "two"]
    assert first.fingerprint != second.fingerprint
    assert written("one").fingerprint == first.fingerprint


def test_a_file_that_is_written_to_meanwhile_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"q": 1}\n')
    with pytest.raises(DataError, match="was written to while it was read"), opened(path) as file:
        list(file.lines())
        path.write_text('{"q": 1}\n{"q": 2}\n')
        file.fingerprint()


def test_what_unpacks_to_too_much_is_refused_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "MAX_UNPACKED", 10_000_000)
    path = tmp_path / "a.jsonl.gz"
    said = r"a\.jsonl\.gz: unpacks to more than .* GiB: unpack it"
    with pytest.raises(DataError, match=said):
        read(path, gzip.compress(b"x" * 10_000_001))
    # The size that gzip's last bytes claim may be too small.
    two = gzip.compress(b"x" * 9_999_999) + gzip.compress(b"x" * 2)
    with pytest.raises(DataError, match=said):
        read(path, two)


def test_a_line_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_LINE", 2**22)
    with pytest.raises(DataError, match="a line has more than 4 MiB"):
        read(tmp_path / "a.txt.gz", gzip.compress(b"x" * 2**23))


def test_a_whole_text_is_read_likewise(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes("Ein\nBüch".encode("utf-16"))
    assert read_text(path) == "Ein\nBüch"
    path.write_bytes("Ein\nBüch".encode("latin-1"))
    with pytest.raises(DataError, match=r"book\.txt, line 2: is not UTF-8 text at byte 5"):
        read_text(path)
    path.write_bytes(b"Ein\nB\0uch")
    with pytest.raises(DataError, match=r"book\.txt, line 2: holds NUL bytes"):
        read_text(path)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_text(tmp_path / "none.txt")
