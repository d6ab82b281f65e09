"""Hostile rows through whole commands: never a traceback, never another row's loss, all named.

A row is a line of JSON that anybody wrote, or a line of bytes that is none.
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sharegen.common import json_values
from sharegen.common.json_values import JsonError
from sharegen.errors import DataError
from sharegen.results.export.formats import read_generations
from sharegen.results.journal.record import Record, read
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.results.scoring.score_file import scores_path
from sharegen.workload.code import SCHEMAS, Schema
from sharegen.workload.dataset import read_rows
from tests.cli.conftest import ROWS, Command, Ran
from tests.cli.test_code_commands import APPS, HUMANEVAL
from tests.cli.test_odd_programs import MBPP
from tests.results.sandboxes import isolation

# ---------------------------------------------------------------- what is hostile


def one_of(texts: list[str]) -> st.SearchStrategy[str]:
    """Any of texts that are too long to be printed with the strategy."""
    return st.integers(0, len(texts) - 1).map(lambda index: texts[index])


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


_TEXTS = st.text(max_size=20) | one_of(
    ["", "\0", "\ud800", "[/x]", "[red]", ":smile:", "a\\\\\\", "\x1b[2J\r", "\u202e", "\u2028",
     "x" * 5_000, "{{ a }}", "{% raw %}", "\n\n", "#### 9", "-" * 3_000 + "1", "```\n" * 9,
     "1" * 5_000, "$" * 400, "def f(:", "a.jsonl", "../a", "<|im_end|>", "<s>", "<pad>"]
)  # fmt: skip
_LEAVES = one_of(
    ["null", "true", "NaN", "-Infinity", "1e400", "-0.0", "1e-400", "1" * 401, "-" + "1" * 400,
     "1" * 5_000, str(2**63), "-1", "0", "3", "[]", "{}", _nested(190), _nested(300),
     _nested(900), _nested(50_000), '{"a": ' * 300 + "1" + "}" * 300]
) | _TEXTS.map(json.dumps)  # fmt: skip
VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
        | st.dictionaries(_TEXTS, inner, max_size=3).map(lambda parts: _object(parts))
    ),
    max_leaves=4,
)
"""JSON as text, since Python itself cannot write all of it."""


def _object(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in fields.items()) + "}"


def objects(*names: str) -> st.SearchStrategy[str]:
    """JSON objects with hostile values under some of the names, and under others."""
    return st.dictionaries(st.sampled_from(names) | _TEXTS, VALUES, max_size=5).map(_object)


def changed(row: dict[str, Any]) -> st.SearchStrategy[str]:
    """The row with one or two of its fields hostile."""
    plain = {name: json.dumps(value) for name, value in row.items()}
    fields = st.dictionaries(st.sampled_from(list(row)), VALUES, min_size=1, max_size=2)
    return fields.map(lambda odd: _object(plain | odd))


def lines(rows: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Lines of a file: the rows, other JSON, JSON that was cut, bytes."""
    noise = st.binary(min_size=1, max_size=20) | st.sampled_from([b"\xff", b"\0" * 50, b"{", b"["])
    cut = st.tuples(rows, st.integers(1, 40)).map(lambda pair: pair[0].encode()[: -pair[1]])
    found = rows.map(str.encode) | VALUES.map(str.encode) | cut | noise
    return found.filter(lambda line: bool(line.strip()) and not set(line) & {10})


def spread(
    draw: Callable[..., Any], good: list[bytes], odd: list[bytes]
) -> list[tuple[bool, bytes]]:
    """All lines in a random order; whether each is good."""
    mixed = [(True, line) for line in good] + [(False, line) for line in odd]
    random.Random(draw(st.integers(0, 999))).shuffle(mixed)
    return mixed


def folder_of(tmp_path: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=tmp_path))


def bounded(examples: int) -> settings:
    """So many examples of what takes seconds: one that fails is told as it was found."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    return settings(
        max_examples=examples, deadline=None, suppress_health_check=checks, phases=phases
    )


def fine(ran: Ran) -> Ran:
    """A command that came to its end, with no escape for the terminal among what it wrote."""
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err and "\x1b" not in ran.out + ran.err
    return ran


# ---------------------------------------------------------------- rows of a dataset

SMALL = ["-n", 2, "--max-tokens", 4, "--kv-cache-memory", "4MiB"]
CONVERSIONS = ("human-eval", "bigcode", "monkeys", "sharegen")


def sample_odd_rows(
    sharegen: Command, model: Path, examples: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """plan, run, run again, and all that is done with the journal."""
    folder = folder_of(tmp_path)
    rows = lines(changed(ROWS[3]) | objects("question", "answer"))
    odd = data.draw(st.lists(rows, min_size=1, max_size=6))
    good = [json.dumps(row).encode() for row in ROWS[3:6]]
    mixed = spread(data.draw, good, odd)
    dataset, journal = folder / "rows.jsonl", folder / "out.jsonl"
    dataset.write_bytes(b"".join(line + b"\n" for _, line in mixed))
    job = ["self-consistency", "--model", model, "--dataset", dataset, "--few-shot-file", examples,
           "--few-shot", 1, *SMALL]  # fmt: skip
    planned = fine(sharegen("plan", *job))
    ran = fine(sharegen("run", *job, "-o", journal))
    fine(sharegen("run", *job, "-o", journal))
    samples: dict[str, set[int]] = {}
    for record in read(journal):
        mine = samples.setdefault(record.problem_id, set())
        if record.sample is not None:
            mine.add(record.sample)
        else:
            assert record.error
            place = int(record.problem_id) + 1
            assert f"line {place}:" in ran.err or f"problem {place - 1}:" in ran.err
            assert f"line {place}:" in planned.err or f"line {place}:" not in ran.err
    assert samples.keys() == set(map(str, range(len(mixed))))
    assert all(samples[str(i)] == {0, 1} for i, (is_good, _) in enumerate(mixed) if is_good)
    use(sharegen, journal, samples)


def use(sharegen: Command, journal: Path, samples: dict[str, set[int]]) -> str:
    """Every command that reads a journal; returns what `vote` says of it on stderr."""
    voted = sharegen("vote", journal, "-o", journal.with_name("votes.jsonl"))
    assert voted.code == 0 or "no sample has an answer" in voted.err, voted.err
    assert "Traceback" not in voted.err
    fine(sharegen("report", journal))
    fine(sharegen("report", journal, "--html", journal.with_suffix(".html")))
    fine(sharegen("score", journal))
    for problem_id in samples:
        fine(sharegen("show", journal, "--problem", problem_id))
    for kind in CONVERSIONS:
        output = journal.with_name(f"converted-{kind}")
        fine(sharegen("convert", journal, "--format", kind, "-o", output))
        if kind != "bigcode":  # which names no problem
            found = {(each.problem_id, each.sample) for each in read_generations(output, kind)}
            asked = {(name, i) for name, indices in samples.items() for i in indices}
            assert asked <= found
    return voted.err


@pytest.mark.slow
@bounded(2)
@given(data=st.data())
def test_datasets(
    sharegen: Command, model: Path, examples: Path, tmp_path: Path, data: st.DataObject
) -> None:
    sample_odd_rows(sharegen, model, examples, tmp_path, data)


@pytest.mark.slow
@pytest.mark.turn(10)
@bounded(40)
@given(data=st.data())
def test_datasets_at_length(
    sharegen: Command, model: Path, examples: Path, tmp_path: Path, data: st.DataObject
) -> None:
    sample_odd_rows(sharegen, model, examples, tmp_path, data)


@bounded(100)
@given(odd=st.lists(lines(objects("a"))), data=st.data())
@pytest.mark.slow
def test_rows_are_read_around_odd_ones(
    tmp_path: Path, odd: list[bytes], data: st.DataObject
) -> None:
    good = [b'{"a": "good 1"}', b'{"a": "good 2"}']
    mixed = spread(data.draw, good, odd)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(line + b"\n" for _, line in mixed))
    rows = read_rows(str(path), None, "test").rows
    assert [row.index for row in rows] == list(range(len(mixed)))
    for row, (is_good, line) in zip(rows, mixed, strict=True):
        assert not is_good or (row.values == json.loads(line) and row.fault is None)
        assert (row.fault is None) or not row.values


# ---------------------------------------------------------------- lines of a journal


@pytest.fixture
def finished(sharegen: Command, job: list[object]) -> Path:
    """A journal with answers, its run.json beside it."""
    assert sharegen(*job).code == 0
    path = Path("out.jsonl").resolve()
    said = {"completion": "#### 9", "answer": "9", "finish_reason": "stop"}  # it is read anew
    records = [Record(**(vars(each) | said)) for each in read(path)]
    path.write_bytes(b"".join(record.to_line() for record in records))
    return path


def read_odd_lines(
    sharegen: Command, job: list[object], finished: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """All that is done with a journal, then the job continued."""
    folder = folder_of(tmp_path)
    good = finished.read_bytes().splitlines()
    spare = json.loads(good[0]) | {"problem_id": "odd", "sample": 900, "token_ids": [1]}
    rows = lines(changed(spare) | changed(spare | {"sample": None, "error": "x"}))
    odd = [json.dumps(spare).encode(), *data.draw(st.lists(rows, min_size=1, max_size=6))]
    mixed = spread(data.draw, good, odd)
    journal = folder / "out.jsonl"
    journal.write_bytes(b"".join(line + b"\n" for _, line in mixed))
    run = RunFile.read(run_file_path(finished))
    assert run is not None
    run.write(run_file_path(journal))
    expected: dict[str, set[int]] = {}
    for line in good:
        record = Record.from_line(line)
        expected.setdefault(record.problem_id, set()).add(record.sample or 0)
    said = use(sharegen, journal, expected)
    for number, (_, line) in enumerate(mixed, start=1):
        if not line.strip(b" \t\r\0"):
            continue  # blanks, and the zeros that a crash leaves, are passed over
        try:
            Record.from_line(line)
        except ValueError:
            assert f"line {number}: " in said
    votes = map(json.loads, (folder / "votes.jsonl").read_text().splitlines())
    assert expected.keys() <= {vote["problem_id"] for vote in votes}
    before = journal.read_bytes()
    fine(sharegen(*job[:-1], journal))
    assert journal.read_bytes().startswith(before)


@pytest.mark.slow
@bounded(3)
@given(data=st.data())
def test_journals(
    sharegen: Command, job: list[object], finished: Path, tmp_path: Path, data: st.DataObject
) -> None:
    read_odd_lines(sharegen, job, finished, tmp_path, data)


@pytest.mark.slow
@pytest.mark.turn(10)
@bounded(40)
@given(data=st.data())
def test_journals_at_length(
    sharegen: Command, job: list[object], finished: Path, tmp_path: Path, data: st.DataObject
) -> None:
    read_odd_lines(sharegen, job, finished, tmp_path, data)


# ---------------------------------------------------------------- rows of programs

LIVE = {
    "question_id": "inc",
    "question_content": "Add 1.",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": '[{"input": "1", "output": "2", "testtype": "functional"}]',
    "private_test_cases": "eJxrYJnKxgABPUzRsVP0ABkLAyg=",
    "metadata": '{"func_name": "inc"}',
}
PROGRAMS: dict[str, tuple[dict[str, Any], str]] = {
    "apps": (APPS[0], "print(int(input()) + 0)"),
    "humaneval": (HUMANEVAL[0], HUMANEVAL[0]["canonical_solution"]),
    "mbpp": (MBPP, MBPP["code"]),
    "livecodebench": (LIVE, "class Solution:\n    def inc(self, x): return x + 1\n"),
}
"""By schema: a row, and a program that passes its tests."""


@pytest.mark.turn(4)
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.name)
@bounded(60)
@given(data=st.data())
def test_rows_of_programs_are_asked_or_bad_and_judged_or_not(
    schema: Schema, data: st.DataObject
) -> None:
    row, _ = PROGRAMS[schema.name]
    try:
        values = json_values.parse(data.draw(changed(row) | objects(*row)))
    except JsonError:
        return
    with contextlib.suppress(DataError):
        schema.fields(values)
    assert schema.problem(values)


def score_odd_rows(sharegen: Command, tmp_path: Path, data: st.DataObject, schema: str) -> None:
    """Samples of tools, odd ones among them, for problems of which some are odd."""
    folder = folder_of(tmp_path)
    row, program = PROGRAMS[schema]
    key = {"apps": "problem_id", "livecodebench": "question_id"}.get(schema, "task_id")
    bare = {name: value for name, value in row.items() if name != key}
    good = [json.dumps(row | {key: name}).encode() for name in ("good/0", "good/1")]
    mixed = spread(data.draw, good, data.draw(st.lists(lines(changed(bare)), max_size=4)))
    (folder / "rows.jsonl").write_bytes(b"".join(line + b"\n" for _, line in mixed))
    names = ["good/0", "good/1", *map(str, range(len(mixed)))]
    samples = [json.dumps({"task_id": name, "completion": program}).encode() for name in names]
    odd = lines(changed({"task_id": "good/0", "completion": program}))
    mixed = spread(data.draw, samples, data.draw(st.lists(odd, max_size=4)))
    path = folder / "samples.jsonl"
    path.write_bytes(b"".join(line + b"\n" for _, line in mixed))
    options = ["--execute", "--dataset", folder / "rows.jsonl", "--schema", schema, "--timeout", 1]
    ran = fine(sharegen("score", path, *options))
    fine(sharegen("score", path, *options))
    scores = list(map(json.loads, scores_path(path).read_text().splitlines()))
    results: dict[str, list[str]] = {}
    for each in scores:
        results.setdefault(each["problem_id"], []).append(each["result"])
    for name in names[:2]:
        assert "passed" in results[name]
    for name, found in results.items():
        assert "unscorable" not in found or f"problem {name}: " in ran.err


@pytest.mark.parametrize("schema", list(PROGRAMS))
@bounded(1)
@given(data=st.data())
@pytest.mark.turn(6)
def test_programs(sharegen: Command, tmp_path: Path, data: st.DataObject, schema: str) -> None:
    isolation()
    score_odd_rows(sharegen, tmp_path, data, schema)


@pytest.mark.slow
@pytest.mark.turn(10)
@pytest.mark.parametrize("schema", list(PROGRAMS))
@bounded(20)
@given(data=st.data())
def test_programs_at_length(
    sharegen: Command, tmp_path: Path, data: st.DataObject, schema: str
) -> None:
    isolation()
    score_odd_rows(sharegen, tmp_path, data, schema)


# ---------------------------------------------------------------- samples of other tools


@bounded(100)
@given(data=st.data())
@pytest.mark.slow
def test_samples_of_tools_are_read_around_odd_ones(tmp_path: Path, data: st.DataObject) -> None:
    sample = {"task_id": "a", "completion": "good"}
    good = [json.dumps(sample).encode()] * 2
    odd = lines(changed(sample) | objects("task_id", "completion"))
    mixed = spread(data.draw, good, data.draw(st.lists(odd, max_size=5)))
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b"".join(line + b"\n" for _, line in mixed))
    assert [each.text for each in read_generations(path)].count("good") >= 2
    programs = data.draw(st.lists(VALUES, max_size=5))
    path = tmp_path / "samples.json"
    path.write_text(f'[["good"], {", ".join([*programs, json.dumps(["good"])])}]')
    found = {each.problem_id for each in read_generations(path) if each.text == "good"}
    assert {0, len(programs) + 1} <= found
