"""What journal lines hold of their row: `--keep-prompt` and `--keep FIELD`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import UsageError
from sharegen.job.recording import kept_fields, refuse_unknown_fields
from sharegen.job.run_job import run_job
from sharegen.results.journal.record import Record, read
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.workload.configuration import Configuration, resolve
from sharegen.workload.files.arrow import BINARY
from sharegen.workload.problem import Problem, load_problems
from sharegen.workload.prompt import Prompt
from sharegen.workload.sampling_section import Sampling


def configure(folder: Path, **flags: Any) -> Configuration:
    given: dict[str, Any] = {
        "model": str(folder / "model"),
        "few_shot": {"k": 0},
        "dataset": {"limit": 2},
        "sampling": {"samples": 1, "max_tokens": 2},
        "machine": {"device": "cpu", "kv_cache_memory": 1 << 22},
    }
    return resolve("self-consistency", str(folder / "rows.jsonl"), given | flags)


def test_lines_hold_what_was_asked_for_and_others_go_on(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(folder), path)
    bare = path.read_bytes()
    kept = {"prompt": True, "fields": ["question", "answer"]}
    more = configure(folder, sampling={"samples": 2, "max_tokens": 2}, keep=kept)
    assert run_job(more, path).drawn == 2
    assert path.read_bytes().startswith(bare)
    old, new = list(read(path))[:2], list(read(path))[2:]
    assert all(record.prompt is None and record.fields is None for record in old)
    problems = {problem.id: problem for problem in load_problems(more)}
    for record in new:
        problem = problems[record.problem_id]
        assert record.prompt == problem.prompt.content
        assert record.fields == {name: problem.fields[name] for name in ("question", "answer")}
    assert configure(folder).identity == more.identity
    run = RunFile.read(run_file_path(path))
    assert run is not None and Configuration.from_settings(run.settings).keep == more.keep


def problem_with(**fields: Any) -> Problem:
    return Problem("a", fields, Prompt("?", "?"), None, "hash", Sampling())


def test_a_field_that_no_row_has_is_an_error(folder: Path) -> None:
    job = configure(folder, keep={"fields": ["level"]})
    with pytest.raises(UsageError, match=r"--keep level: no row .* \(the first has question"):
        refuse_unknown_fields(job, [problem_with(question="?")])
    refuse_unknown_fields(job, [problem_with(question="?"), problem_with(level=1)])
    with pytest.raises(UsageError, match="--keep level: the field is binary"):
        refuse_unknown_fields(job, [problem_with(level=1), problem_with(level=BINARY)])


def test_a_kept_value_is_read_back_whatever_it_is() -> None:
    deep: Any = "end"
    for _ in range(199):
        deep = [deep]
    fields = {"nan": float("nan"), "bytes": b"a", "deep": deep, "half": "\ud800", "map": {"a": [1]}}
    kept = kept_fields(problem_with(**fields), [*fields, "missing"])
    record = Record("a", 0, "h", "text", fields=kept)
    back = Record.from_line(record.to_line()).fields
    assert back is not None
    assert back["nan"] is None and back["missing"] is None and back["bytes"] == "b'a'"
    assert back["half"] == "\ud800" and back["map"] == {"a": [1]}
    assert json.dumps(back["deep"]).count("[") == 199


def test_a_recipe_may_say_what_is_kept(folder: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text('prompt: "{{ question }}"\nkeep: {prompt: true, fields: question}\n')
    job = resolve(str(recipe), str(folder / "rows.jsonl"), {"model": str(folder / "model")})
    assert job.keep.prompt and job.keep.fields == ["question"]
    assert "keep" not in job.identity and "keep" in job.extent
