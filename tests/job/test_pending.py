"""What is left to draw becomes requests; what cannot run becomes lines of the journal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sharegen.errors import CapacityError, DataError, RequestError, SharegenError
from sharegen.job.pending import PendingProblem, admitted, pending_problems
from sharegen.results.journal.journal import Journal
from sharegen.results.journal.keys import Key, Keys
from sharegen.workload.problem import Problem, load_workload
from tests.job.parts import ROWS, configure


@pytest.fixture
def problems(tmp_path: Path) -> Sequence[Problem]:
    for name, rows in (("rows", ROWS[1:5]), ("examples", ROWS[:1])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_workload(configure(tmp_path)).problems


def pending(problems: Sequence[Problem], finished: Keys) -> list[PendingProblem]:
    count = len(problems)
    prompts = [[5, 6, number] for number in range(count)]
    return pending_problems(problems, prompts, [[2]] * count, [False] * count, finished, None)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal.open(tmp_path / "job.jsonl", {"seed": 0})


def test_samples_on_record_are_not_asked_again(problems: Sequence[Problem]) -> None:
    first, second = problems[:2]
    finished = Keys([Key(first.id, first.prompt_hash, 1)])
    finished |= Keys([Key(second.id, second.prompt_hash, sample) for sample in range(3)])
    found = pending(problems, finished)
    assert [list(item.request.samples) for item in found] == [[0, 2], [], [0, 1, 2], [0, 1, 2]]
    assert [item.recorded for item in found] == [1, 3, 0, 0]
    assert len({item.request.key for item in found}) == 4
    assert len({id(item.request.params) for item in found}) == 1  # sampled alike: one object


def test_what_cannot_run_stays_in_the_tree_without_samples(
    problems: Sequence[Problem], journal: Journal
) -> None:
    found = pending(problems, Keys())
    errors: list[SharegenError | None] = [None, RequestError("too long"), None, None]
    with journal:
        asked, requests = admitted(found, errors, journal, strict=False)
        assert [item.problem for item in asked] == [problems[0], *problems[2:]]
        assert [len(request.samples) for request in requests] == [3, 0, 3, 3]
        [line] = journal.records()
        assert (line.key.problem_id, line.error) == (problems[1].id, "too long")
        with pytest.raises(RequestError, match=r"problem .*: too long \(--strict\)"):
            admitted(found, errors, journal, strict=True)


@pytest.mark.parametrize(
    ("error", "kind"), [(RequestError("long"), DataError), (CapacityError("big"), CapacityError)]
)
def test_a_job_of_which_nothing_can_run_says_why(
    problems: Sequence[Problem], journal: Journal, error: SharegenError, kind: type[SharegenError]
) -> None:
    found = pending(problems, Keys())
    with journal, pytest.raises(kind, match=f"no row can be asked: {error}"):
        admitted(found, [error] * len(found), journal, strict=False)


def test_all_on_record_is_no_error(problems: Sequence[Problem], journal: Journal) -> None:
    every = [Key(each.id, each.prompt_hash, sample) for each in problems for sample in range(3)]
    found = pending(problems, Keys(every))
    errors: list[SharegenError | None] = [RequestError("too long")] * len(found)
    with journal:
        asked, requests = admitted(found, errors, journal, strict=True)
    assert asked == found and not any(request.samples for request in requests)
