"""A journal's line: what is written is read back, and what is no record is named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharegen.errors import JournalError
from sharegen.results.journal.record import Record, read


def as_json_holds_it(text: str) -> str:
    """Half of a surrogate pair stays one; two that meet are a character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


text = st.text(st.characters(exclude_categories=()), max_size=40).map(as_json_holds_it)
optional_text = st.none() | text
samples = st.builds(
    Record,
    problem_id=text,
    sample=st.integers(0, 10**6),
    prompt_hash=text,
    completion=text,
    num_tokens=st.integers(0, 10**6),
    finish_reason=st.sampled_from(["eos", "stop", "length", "context"]),
    cumulative_logprob=st.floats(allow_nan=False, allow_infinity=False),
    answer=optional_text,
    gold=optional_text,
    token_ids=st.none() | st.lists(st.integers(0, 200_000), max_size=5),
    row_hash=optional_text,
    prompt=optional_text | st.just([{"role": "user", "content": "?"}]),
    fields=st.none() | st.dictionaries(text, st.none() | st.integers(0, 9) | text, max_size=3),
)
bad_rows = st.builds(
    Record, problem_id=text, sample=st.none(), prompt_hash=st.none(), error=optional_text
)


@given(samples | bad_rows)
def test_a_record_is_one_line_and_comes_back(record: Record) -> None:
    line = record.to_line()
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1  # also for readers that split at U+2028
    assert Record.from_line(line) == record


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_logprob_that_json_cannot_hold_is_null(value: float) -> None:
    line = Record("a", 0, "h", "text", 1, "eos", value).to_line()
    assert json.loads(line, parse_constant=pytest.fail)["cumulative_logprob"] is None


def test_fields_are_written_where_they_mean_something() -> None:
    plain = json.loads(Record("a", 0, "h", "text", 1, "eos", -1.0).to_line())
    assert list(plain) == [
        "problem_id",
        "sample",
        "prompt_hash",
        "completion",
        "num_tokens",
        "finish_reason",
        "cumulative_logprob",
    ]
    unanswered = json.loads(Record("a", 0, "h", "text", 1, "eos", -1.0, None, "18").to_line())
    assert unanswered["answer"] is None and unanswered["gold"] == "18"
    bad = json.loads(Record("a", None, None, error="no field `question`").to_line())
    assert bad == {
        "problem_id": "a",
        "sample": None,
        "prompt_hash": None,
        "error": "no field `question`",
    }


def test_fields_of_a_later_version_are_ignored() -> None:
    line = b'{"problem_id": "a", "sample": 1, "completion": "x", "hue": "red"}'
    assert Record.from_line(line) == Record("a", 1, None, "x")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"sample": 1}', "has no field `problem_id`"),
        (b'{"problem_id": "a"}', "has no field `sample`"),
        (b'{"problem_id": "a", "sample": 1, "passed": true}', "has no field `completion`"),
        (b'{"problem_id": "a", "sample": null}', "has no field `error`"),
        (b'{"problem_id": 3, "sample": 1, "completion": ""}', "has `problem_id` 3"),
        (b'{"problem_id": "a", "sample": true, "completion": ""}', "has `sample` true"),
        (b'{"problem_id": "a", "sample": -1, "completion": ""}', "has `sample` -1"),
        (b'{"problem_id": "a", "sample": 1, "completion": "", "answer": 18}', "has `answer` 18"),
        (b'{"problem_id": "a", "sample": 1, "completion": null}', "has `completion` null"),
    ],
)
def test_a_line_that_is_no_record_says_why(line: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("[", r"\[")):
        Record.from_line(line)


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def line(problem: str, sample: int, completion: str = "x") -> bytes:
    return Record(problem, sample, "h", completion).to_line()


def test_reading_leaves_out_a_last_line_cut_short(tmp_path: Path) -> None:
    whole = line("a", 0) + line("a", 1)
    reader = read(write(tmp_path / "j", whole, line("a", 2)[:-9]))
    assert [record.sample for record in reader] == [0, 1]
    assert reader.end == len(whole) and not reader.unterminated


def test_reading_keeps_a_last_line_that_lacks_only_its_newline(tmp_path: Path) -> None:
    content = line("a", 0) + line("a", 1)[:-1]
    reader = read(write(tmp_path / "j", content))
    assert [record.sample for record in reader] == [0, 1]
    assert reader.end == len(content) and reader.unterminated


def test_the_first_of_two_lines_with_one_key_wins(tmp_path: Path) -> None:
    path = write(tmp_path / "j", line("a", 0, "first"), line("b", 0), line("a", 0, "second"))
    reader = read(path)
    assert [record.completion for record in reader] == ["first", "x"]
    assert reader.duplicates == [3]


def test_of_a_sample_that_failed_the_drawn_line_wins(tmp_path: Path) -> None:
    def failed(problem: str, index: int) -> bytes:
        return Record(problem, index, "h", finish_reason="error", error="no numbers").to_line()

    path = write(
        tmp_path / "j.jsonl", failed("a", 0), failed("a", 1), line("a", 2), line("a", 0, "y"),
        failed("a", 0),
    )  # fmt: skip
    found = [(record.sample, record.is_drawn, record.completion) for record in read(path)]
    assert found == [(2, True, "x"), (0, True, "y"), (1, False, "")]


def test_empty_lines_and_an_empty_file_hold_nothing(tmp_path: Path) -> None:
    assert list(read(write(tmp_path / "empty", b""))) == []
    reader = read(write(tmp_path / "j", b"\n", line("a", 0), b"  \n", line("a", 1)))
    assert [record.sample for record in reader] == [0, 1]
    assert reader.end == (tmp_path / "j").stat().st_size


@pytest.mark.parametrize(
    "odd",
    [
        b'{"problem_id": "a", "sam',
        b"[" * 5_000 + b"]" * 5_000,
        b'{"problem_id": "a", "sample": 2, "completion": "", "token_ids": [1'
        + b"0" * 5_000
        + b"]}",
        b'{"problem_id": "a", "sample": 2, "completion": "", "num_tokens": 1' + b"0" * 400 + b"}",
        b'{"problem_id": "a", "sample": 2, "completion": "", "cumulative_logprob": NaN}',
        b'{"problem_id": "a", "sample": 2, "completion": "", "cumulative_logprob": -1'
        + b"0" * 400
        + b"}",
    ],
)
def test_an_odd_line_is_named_and_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: bytes
) -> None:
    reader = read(write(tmp_path / "j", line("a", 0), odd + b"\n", line("a", 1)))
    assert [record.sample for record in reader] == [0, 1]
    assert reader.odd == [2] and reader.end == (tmp_path / "j").stat().st_size
    assert "j, line 2: the line " in caplog.text and len(caplog.messages) == 1


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="none: cannot be read: No such file"):
        list(read(tmp_path / "none"))
    with pytest.raises(JournalError, match="cannot be read: Is a directory"):
        list(read(tmp_path))


def test_a_line_that_is_whole_but_no_record_is_no_torn_line(tmp_path: Path) -> None:
    """A file of another kind without a last newline, such as one JSON list."""
    path = tmp_path / "a.json"
    for text in ('[["a"], ["b"]]', '{"task_id": "a", "completion": "b"}', "17"):
        path.write_text(text)
        with pytest.raises(JournalError, match=r"line 1.*not a journal"):
            list(read(path))
    path.write_text('{"problem_id": "a", "sample": 1')
    assert list(read(path)) == []
