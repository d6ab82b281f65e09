"""Samples in other tools' formats, read back by rules that were written for those tools' files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from sharegen.errors import DataError
from sharegen.results.export.formats import (
    Generation,
    SampledProblem,
    default_path,
    format_of,
    read_generations,
    write_generations,
)
from sharegen.results.journal.record import Record

PROBLEMS = [
    SampledProblem(
        "T/0", "P0", "Q0", "G0", ["a\n", "  b: |\n\t'\"", "é\u2028"], ["P0a\n", "x", "y"]
    ),
    SampledProblem("T/1", "P1", "Q1", "", [""], ["P1"]),
]


def pairs(path: Path) -> list[tuple[str | int, int, str]]:
    return [(g.problem_id, g.sample, g.text) for g in read_generations(path)]


COMPLETIONS = [(p.problem_id, i, t) for p in PROBLEMS for i, t in enumerate(p.completions)]


def test_human_eval_by_its_readers_rules(tmp_path: Path) -> None:
    """human_eval/data.py reads every line that is not blank as JSON; evaluation.py numbers a
    task's samples by their order."""
    path = tmp_path / "samples.jsonl"
    write_generations(path, "human-eval", PROBLEMS)
    lines = [json.loads(line) for line in path.read_text().split("\n") if line.strip()]
    assert [(row["task_id"], row["completion"]) for row in lines] == [
        (problem_id, text) for problem_id, _, text in COMPLETIONS
    ]
    assert all(row.keys() == {"task_id", "completion"} for row in lines)
    assert format_of(path) == "human-eval" and pairs(path) == COMPLETIONS
    path.write_text("\n" + path.read_text().replace("\n", "\n\n"))
    assert pairs(path) == COMPLETIONS


def test_bigcode_by_its_readers_rules(tmp_path: Path) -> None:
    """bigcode_eval's main.py loads --load_generations_path with json.load: a list of lists."""
    path = tmp_path / "generations.json"
    write_generations(path, "bigcode", PROBLEMS)
    assert json.loads(path.read_text()) == [["P0a\n", "x", "y"], ["P1"]]
    assert format_of(path) == "bigcode"
    first, *_, last = read_generations(path)
    assert first == Generation(0, 0, "P0a\n", is_program=True)
    assert last == Generation(1, 0, "P1", is_program=True)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2))
    assert format_of(path) == "bigcode"


def test_monkeys_by_its_readers_rules(tmp_path: Path) -> None:
    """llmonk/evaluate globs *.yaml in one folder and loads each with yaml.CLoader."""
    path = tmp_path / "samples"
    write_generations(path, "monkeys", PROBLEMS)
    loader = getattr(yaml, "CLoader", yaml.Loader)
    loaded = [yaml.load(file.read_text(), Loader=loader) for file in sorted(path.glob("*.yaml"))]
    assert [row["samples"] for row in loaded] == [list(p.completions) for p in PROBLEMS]
    assert loaded[0]["prompt"] == "P0" and loaded[0]["question"] == "Q0"
    assert [row["gt_answer"] for row in loaded] == ["G0", ""]
    assert format_of(path) == "monkeys" and pairs(path) == COMPLETIONS


def test_our_own_journal(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    records = [Record("p", None, None, error="bad"), Record("p", 1, "h", "one")]
    path.write_bytes(b"".join(record.to_line() for record in records))
    assert format_of(path) == "sharegen" and pairs(path) == [("p", 1, "one")]


def test_default_paths_lie_beside_the_journal() -> None:
    journal = Path("runs/a.jsonl")
    assert default_path(journal, "human-eval") == Path("runs/a.human-eval.jsonl")
    assert default_path(journal, "bigcode") == Path("runs/a.bigcode.json")
    assert default_path(journal, "parquet") == Path("runs/a.parquet")
    assert default_path(journal, "monkeys") == Path("runs/a.monkeys")
    assert default_path(journal, "sharegen") == Path("runs/a.sharegen.jsonl")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "holds no samples"),
        ("a.jsonl", '{"problem_id": "1", "sam', "holds no samples"),
        ("a.jsonl", '{"problem_id": "1", "sam\n', "line 1: is not JSON"),
        ("a.jsonl", "no", "line 1: is not JSON"),
        ("a.jsonl", '{"a": 1}', "neither a journal nor samples"),
        ("a.jsonl", '{"task_id": [], "completion": "x"}', "line 1: has no 'task_id'"),
        ("a.json", "[1]", "item 0: is not a list of programs"),
        ("a.json", "[[", "is not JSON"),
    ],
)
def test_bad_files_are_named_by_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        list(read_generations(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"task_id": 1, "completion": "x"}\n{"task_id": 1}', "line 2: has no text"),
        ("a.jsonl", '{"task_id": 1, "completion": "x"}\n{', "line 2: is not JSON"),
        ("a.jsonl", '[7]\n{"task_id": 1, "completion": "x"}', "line 1: has no text"),
        ("a.jsonl", '{"problem_id": 7}\n{"task_id": 1, "completion": "x"}', "line 1: has no text"),
        ("a.json", '[["x"], [2]]', "item 1: is not a list of programs: number 0"),
        ("a.json", f'[["x"], {"[" * 5000}{"]" * 5000}]', "item 1: is not a list of programs"),
    ],
)
def test_odd_samples_are_named_and_cost_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert [each.text for each in read_generations(path)] == ["x"]
    assert f"{path}, {message}" in caplog.text


def test_an_odd_sample_keeps_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"task_id": "a", "completion": text} for text in ("x", None, "z")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [each.sample for each in read_generations(path)] == [0, 2]


def test_ids_are_file_names_where_they_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = ["a/b", "\ud800", "", "x" * 300]
    problems = [SampledProblem(name, "p", "q", "1", ["text"], ["text"]) for name in ids]
    write_generations(tmp_path / "m", "monkeys", problems)
    assert {each.problem_id for each in read_generations(tmp_path / "m")} == set(ids[:3])
    assert "too long" in caplog.text


def test_bad_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"without \.yaml files"):
        format_of(tmp_path)
    for content, message in (
        ("a: [", "is not YAML"),
        ("a: 1", "samples"),
        ("samples: [1]", "samples"),
    ):
        (tmp_path / "a.yaml").write_text(content)
        with pytest.raises(DataError, match=message):
            list(read_generations(tmp_path))
    with pytest.raises(DataError, match="cannot be read: No such file"):
        format_of(tmp_path / "missing.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        write_generations(tmp_path / "file" / "a.json", "bigcode", PROBLEMS)
