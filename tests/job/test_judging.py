"""Programs judged beside the sampling, and the rule that their verdicts decide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharegen.common.stop_rule import StopRule
from sharegen.errors import UsageError
from sharegen.job.judging import check_execution, judging
from sharegen.job.run_job import run_job
from sharegen.job.stop_when import Stopping
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.pool import one_job
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.results.scoring.score_file import scores_path
from sharegen.results.stopping.stopped import Stopped, counted
from sharegen.workload.configuration import Configuration, resolve
from sharegen.workload.problem import load_problems
from tests.results.sandboxes import isolation

ROWS = [
    {
        "problem_id": number,
        "question": f"Add {number}.",
        "solutions": "[]",
        "input_output": json.dumps({"inputs": ["1\n"], "outputs": [f"{number + 1}\n"]}),
        "difficulty": "introductory",
        "starter_code": "",
    }
    for number in range(2)
]
RIGHT, WRONG = "print(int(input()) + 1)", "print(0)"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "apps.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def configure(dataset: Path, rule: str | None, model: str = "none") -> Configuration:
    sampling = {"samples": 6, "max_tokens": 6, "stop_when": rule}
    machine = {"device": "cpu", "kv_cache_memory": 1 << 22}
    flags = {"model": model, "few_shot": {"k": 0}, "sampling": sampling, "machine": machine}
    return resolve("code-sample", str(dataset), flags)


class Engine:
    """Hears what a job tells its engine."""

    def __init__(self) -> None:
        self.cancelled: list[int] = []
        self.required: dict[int, int] = {}

    def cancel(self, key: int) -> list[int]:
        self.cancelled.append(key)
        return [4, 5]

    def call(self, key: int, required: int) -> None:
        self.required[key] = required


@pytest.mark.slow
def test_verdicts_decide_and_are_continued(dataset: Path, tmp_path: Path) -> None:
    """Two right ones of problem 1 are enough; the verdicts are where `score` looks for them."""
    configuration = configure(dataset, "right=2")
    run = RunFile(configuration=configuration.identity, extent=configuration.extent)
    path = tmp_path / "a.jsonl"
    path.touch()
    run.write(run_file_path(path))
    problem = load_problems(configuration)[1]
    texts = [WRONG, RIGHT, WRONG, RIGHT, RIGHT]
    records = [
        Record(problem.id, i, problem.prompt_hash, text, row_hash=problem.row_hash)
        for i, text in enumerate(texts)
    ]
    engine = Engine()
    rule = StopRule.parse("right=2")
    with judging([FoundJournal(path)], run, isolation()) as judge:
        stopping = Stopping(Stopped(rule, 6), engine, judge)
        assert stopping.deciding(problem, 77).required == 2
        with path.open("ab") as file:
            for record in records[:2]:
                file.write(record.to_line())
                assert not list(stopping.note(record)) or engine.required
        stopping.finish()
    assert len(scores_path(path).read_text().splitlines()) == 2
    with path.open("ab") as file:  # of a run that was killed before they were judged
        file.writelines(record.to_line() for record in records[2:])
    with judging([FoundJournal(path)], run, isolation()):
        verdicts = [json.loads(line) for line in scores_path(path).read_text().splitlines()]
    assert sorted((v["sample"], v["passed"]) for v in verdicts) == [
        (0, False), (1, True), (2, False), (3, True), (4, True)
    ]  # fmt: skip
    found = one_job(path)
    stopped = Stopped.of(found)
    assert stopped is not None
    [deciding] = stopped.problems.values()
    assert deciding.is_decided and deciding.counted == 4
    assert [r.sample for r in counted(found.records(), stopped)] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_job_draws_all_where_nothing_is_right(
    folder: Path, dataset: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    configuration = configure(dataset, "right=1", str(folder / "model"))
    assert run_job(configuration, path, execute=isolation()).drawn == 12
    assert len(scores_path(path).read_text().splitlines()) == 12
    assert run_job(configuration, path, execute=isolation()).drawn == 0
    scores_path(path).unlink()  # what is right is not known any more, so it is found out again
    assert run_job(configuration, path, execute=isolation()).drawn == 0
    assert len(scores_path(path).read_text().splitlines()) == 12


def test_programs_run_where_that_was_asked_and_for_something(dataset: Path) -> None:
    with pytest.raises(UsageError, match="which programs are right takes running them: add --exec"):
        check_execution(configure(dataset, "right=2"), None)
    with pytest.raises(UsageError, match="--execute runs programs for --stop-when right=K"):
        check_execution(configure(dataset, None), "none")
    with pytest.raises(UsageError, match="takes no answers out of its samples"):
        configure(dataset, "decided")
    check_execution(configure(dataset, None), None)
    check_execution(configure(dataset, "right=2"), "none")
