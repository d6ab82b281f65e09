"""Journals and run files that an editor, a disk or a crash changed between two runs.

A record that is whole is read, whatever lies around it; a run file is used as far as it goes, and
costs no sample where it does not. What is refused is refused in one line.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharegen.errors import JournalError
from sharegen.results.journal.journal import Journal, Record, read
from sharegen.results.journal.run_file import RunFile, run_file_path

CONFIGURATION = {"sampling": {"seed": 0, "temperature": 0.5}, "dtype": "float32"}
STATS = {"generated_tokens": 12, "peak_kv": {"reserved": 3, "used": 2}, "idle": []}
TIMINGS = {"sampling_seconds": 1.5, "progress": [[0.5, 6], [1.5, 12]]}
RECORDS = [
    Record(f"p{number}", sample, f"h{number}", f'a "text" {number}\n}}', 2, "eos", -1.0, "3", "4")
    for number in range(3)
    for sample in range(2)
]


def fill(path: Path) -> Path:
    with Journal.open(path, CONFIGURATION, extent={"sampling": {"samples": 2}}) as journal:
        for record in RECORDS:
            journal.append(record)
        journal.close(STATS, timings=TIMINGS)
    return path


def go_on(path: Path, adopt: bool = False) -> list[Record]:
    with Journal.open(path, CONFIGURATION, adopt=adopt) as journal:
        journal.close(STATS, timings=TIMINGS)
    return list(read(path))


def lines(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


NUL = b"\0" * 512

EDITS: dict[str, Callable[[bytes], bytes]] = {
    "byte order mark": lambda content: b"\xef\xbb\xbf" + content,
    "byte order marks where files were joined": lambda content: content.replace(
        b'{"problem_id": "p1"', b'\xef\xbb\xbf{"problem_id": "p1"'
    ),
    "CRLF": lambda content: content.replace(b"\n", b"\r\n"),
    "no end": lambda content: content.rstrip(b"\n"),
    "CRLF and no end": lambda content: content.rstrip(b"\n").replace(b"\n", b"\r\n"),
    "blank lines": lambda content: b"\n\r\n  \n" + content.replace(b"\n", b"\n\n") + b"\n\n",
    "trailing spaces": lambda content: content.replace(b"\n", b" \t \n"),
    "indented": lambda content: b"  " + content.replace(b"\n", b"\n  "),
    "another order": lambda content: b"".join(sorted(lines(content), reverse=True)),
    "twice": lambda content: content + content,
    "zeros in front": lambda content: NUL + content,
    "zeros between": lambda content: b"".join(NUL + line for line in lines(content)),
    "zeros at the end": lambda content: content + NUL,
    "zeros at the end of a line": lambda content: content.replace(b"\n", b"\0\0\n"),
    "lines of zeros": lambda content: content.replace(b"\n", b"\n" + NUL + b"\n"),
    "half a line and zeros": lambda content: b'{"problem_id": "x", "sam' + NUL + content,
    "half a line": lambda content: b'{"problem_id": "x", "sam' + content,
    "a line without its end": lambda content: content.replace(b"\n", b"", 1),
    "no line with its end": lambda content: content.replace(b"\n", b""),
    "another byte for an end": lambda content: content.replace(b"\n", b"\xff", 2),
    "another byte for the last end": lambda content: content[:-1] + b"!",
    "a line that is not UTF-8": lambda content: b'{"problem_id": "\xff\xfe"}\n' + content,
    "a line of mine": lambda content: lines(content)[0] + b"# mine\n" + content,
    "compact": lambda content: b"".join(
        json.dumps(json.loads(line), separators=(",", ":")).encode() + b"\n"
        for line in lines(content)
    ),
    "escaped": lambda content: content.replace(b"text", b"\\u0074ext"),
}


@pytest.mark.parametrize("name", EDITS)
def test_every_whole_record_is_read(tmp_path: Path, name: str) -> None:
    path = fill(tmp_path / "a.jsonl")
    path.write_bytes(EDITS[name](path.read_bytes()))
    found = go_on(path)
    assert sorted(found, key=lambda r: r.key) == RECORDS
    with Journal.open(path, CONFIGURATION) as journal:
        journal.append(Record("new", 0, "h"))
    assert len(list(read(path))) == len(RECORDS) + 1  # what comes behind is not glued to it


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b"{}", NUL, b"\xff\xfe{", b'{"configuration": 3}',
        b'{"configuration": {}, "fingerprints": [1]}',
        b'{"configuration": {}, "fingerprints": {"model": 3}}',
        b'{"configuration": {}, "fingerprints": {"clock": "soon"}}',
        b'{"configuration": {}, "extent": {"sampling": "x"}}',
        b'{"configuration": {}, "extent": {"answer": {"patterns": "x"}}}',
        b'{"configuration": {}, "answers": {"golds": [1]}}',
        b'{"configuration": ' + b'{"a":' * 3000 + b"1" + b"}" * 3001,
        b'{"configuration": {"n": ' + b"9" * 5000 + b"}}",
    ],
)  # fmt: skip
def test_a_broken_run_file_strands_no_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = fill(tmp_path / "a.jsonl")
    before = path.read_bytes()
    run_file_path(path).write_bytes(content)
    with pytest.raises(JournalError, match=r"a\.run\.json: .*--adopt") as caught:
        go_on(path)
    assert "\n" not in str(caught.value) and path.read_bytes() == before
    assert go_on(path, adopt=True) == RECORDS
    assert "are taken to be of the job as it is asked now (--adopt)" in caplog.text
    assert go_on(path) == RECORDS  # for good


def test_a_journal_without_a_run_file_can_be_adopted(tmp_path: Path) -> None:
    path = fill(tmp_path / "a.jsonl")
    run_file_path(path).unlink()
    with pytest.raises(JournalError, match=r"exists without \.sharegen/a\.run\.json.*--adopt"):
        go_on(path)
    assert go_on(path, adopt=True) == RECORDS


def test_another_job_s_journal_is_not_adopted(tmp_path: Path) -> None:
    path = fill(tmp_path / "a.jsonl")
    with pytest.raises(JournalError, match="comes from another configuration") as caught:
        Journal.open(path, CONFIGURATION | {"dtype": "bfloat16"}, adopt=True)
    assert "--adopt" not in str(caught.value)
    run = run_file_path(path)
    run.write_text(run.read_text().replace("0.5", '"0.5"'))  # by hand
    with pytest.raises(
        JournalError, match=r'temperature was "0\.5" and is now 0\.5 .*edited.*--ad'
    ):
        go_on(path)
    assert go_on(path, adopt=True) == RECORDS


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("timings", {"sampling_seconds": "long"}),
        ("timings", {"progress": [["x", 1]]}),
        ("stats", {"generated_tokens": "many"}),
        ("stats", {"peak_kv": 3}),
        ("counts", {"samples": "all"}),
    ],
)
@pytest.mark.parametrize("digest", [True, False])
def test_a_text_for_a_number_costs_the_numbers_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, section: str, change: object, digest: bool
) -> None:
    path = fill(tmp_path / "a.jsonl")
    sections = json.loads(run_file_path(path).read_text())
    sections[section] = sections[section] | change
    if not digest:
        del sections["digest"]
    run_file_path(path).write_text(json.dumps(sections))
    run = RunFile.read(run_file_path(path))
    assert run is not None and not run.stats and not run.timings and not run.counts
    assert "was edited or damaged since it was written" in caplog.text
    assert go_on(path) == RECORDS


@pytest.fixture(scope="module")
def whole() -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = fill(Path(folder) / "a.jsonl")
        return path.read_bytes(), run_file_path(path).read_bytes()


mutations = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=3), st.integers(0, 3)),
    min_size=1,
    max_size=3,
)


def mutated(content: bytes, changes: list[tuple[float, bytes, int]]) -> bytes:
    """Some bytes put in the place of some others."""
    for where, put, length in changes:
        at = int(where * len(content))
        content = content[:at] + put + content[at + length :]
    return content


@pytest.mark.turn(4)
@settings(max_examples=120, deadline=None)
@given(changes=mutations)
def test_bytes_of_a_journal_that_change(
    whole: tuple[bytes, bytes], changes: list[tuple[float, bytes, int]]
) -> None:
    content, run = whole
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(mutated(content, changes))
        run_file_path(path).parent.mkdir()
        run_file_path(path).write_bytes(run)
        untouched = {line for line in lines(content) if line.strip() in path.read_bytes()}
        try:
            found = go_on(path)
        except JournalError as error:
            assert "\n" not in str(error) and not untouched
        else:
            assert untouched <= {record.to_line() for record in found}
            assert {record.key for record in found} == {record.key for record in go_on(path)}


@pytest.mark.slow
@pytest.mark.turn(4)
@settings(max_examples=120, deadline=None)
@given(changes=mutations)
def test_bytes_of_a_run_file_that_change(
    whole: tuple[bytes, bytes], changes: list[tuple[float, bytes, int]]
) -> None:
    content, run = whole
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(content)
        run_file_path(path).parent.mkdir()
        run_file_path(path).write_bytes(mutated(run, changes))
        try:
            found = go_on(path)
        except JournalError as error:
            assert "\n" not in str(error) and "--adopt" in str(error)
            assert path.read_bytes() == content
            found = go_on(path, adopt=True)
        assert found == RECORDS
