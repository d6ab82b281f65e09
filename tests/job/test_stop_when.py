"""Jobs that stop early: what counts is the full job's, whatever interrupts them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import UsageError
from sharegen.job.dry_run import plan_job
from sharegen.job.interrupt import Interrupted
from sharegen.job.run_job import run_job
from sharegen.job.watcher import Watcher
from sharegen.results.journal.pool import one_job
from sharegen.results.journal.record import Record
from sharegen.results.scoring.vote import tally
from sharegen.results.stopping.stopped import Stopped, counted
from sharegen.workload.configuration import Configuration, resolve
from sharegen.workload.sections import Answer
from sharegen.workload.validation import validate

SAMPLES = 10
ANSWER = {"patterns": [r"[a-z]", r"\S"], "match": "first"}  # what a random model gives: letters


def configure(folder: Path, rule: str | None = None, **flags: Any) -> Configuration:
    machine = {"device": "cpu", "max_sequences": 12, "kv_cache_memory": 1 << 22}
    given = {
        "model": str(folder / "model"),
        "few_shot": {"k": 1, "file": str(folder / "examples.jsonl")},
        "dataset": {"limit": 9},
        "sampling": {
            "samples": flags.pop("samples", SAMPLES), "max_tokens": 8, "temperature": 0.7,
            "stop_when": rule,
        },
        "machine": machine | flags,
        "token_ids": True,
        "answer": ANSWER,
    }  # fmt: skip
    return resolve("self-consistency", str(folder / "rows.jsonl"), given)


def drawn(path: Path) -> dict[tuple[str, int | None], dict[str, Any]]:
    found = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record["sample"] is not None:
            assert found.setdefault((record["problem_id"], record["sample"]), record) is record
    return found


def what_counts(path: Path) -> tuple[dict[str, tuple[int, bool]], dict[Any, Any]]:
    """The decision of every problem, and the records that count."""
    found = one_job(path)
    stopped = Stopped.of(found)
    assert stopped is not None
    decisions = {p[0]: (d.counted, d.is_decided) for p, d in stopped.problems.items()}
    keys = {(r.problem_id, r.sample) for r in counted(found.records(), stopped) if r.is_sample}
    return decisions, {key: record for key, record in drawn(path).items() if key in keys}


def winners(path: Path, stopped: Stopped | None) -> dict[str, str | None]:
    votes = tally(counted(one_job(path).records(), stopped))
    return {vote.problem_id: vote.answer for vote in votes}


@pytest.fixture(scope="module")
def full(folder: Path) -> Path:
    path = folder / "full.jsonl"
    run_job(configure(folder), path)
    return path


def offline(path: Path, text: str, samples: int = SAMPLES) -> dict[str, tuple[int, bool]]:
    """The decisions that a rule reaches on a full journal."""
    rule = configure(path.parent, text).sampling.rule
    assert rule is not None
    stopped = Stopped.read(rule, samples, one_job(path))
    return {p[0]: (d.counted, d.is_decided) for p, d in stopped.problems.items()}


@pytest.mark.turn(4)
@pytest.mark.parametrize("rule", ["decided", pytest.param("confident=0.8", marks=pytest.mark.slow)])
def test_a_stopped_job_draws_the_samples_of_the_full_one(
    rule: str, folder: Path, full: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    outcome = run_job(configure(folder, rule), path)
    decisions, _ = what_counts(path)
    assert decisions == offline(full, rule) and all(done for _, done in decisions.values())
    every = drawn(full)
    assert all(every[key] == record for key, record in drawn(path).items())
    assert outcome.drawn == len(drawn(path)) < len(every)
    if rule == "decided":
        assert winners(path, Stopped.of(one_job(path))) == winners(full, None)
    # The same command again is told from the journal; more samples, or no rule, continue it.
    assert run_job(configure(folder, rule), path).drawn == 0
    more = run_job(configure(folder, rule, samples=SAMPLES + 4), path)
    assert all(done for _, done in what_counts(path)[0].values())
    rest = run_job(configure(folder), path)
    assert outcome.drawn + more.drawn + rest.drawn == len(drawn(path))
    assert {k: v for k, v in drawn(path).items() if (k[1] or 0) < SAMPLES} == every
    # A full journal is stopped by a rule without drawing anything.
    assert run_job(configure(folder, "window=2"), path).drawn == 0
    assert what_counts(path)[0] == offline(full, "window=2")


class Stop(Watcher):
    """Interrupts when so many samples are drawn."""

    def __init__(self, samples: int) -> None:
        self.left = samples

    def sampling(self, stats: Any, *counts: Any) -> Any:
        return self

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def save(self, asked: int, saved: int) -> None:
        assert 0 <= saved < asked

    def advance(self, tokens: int, problem_done: bool) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["decided", "confident=0.8", "window=3"])
@pytest.mark.turn(3)
def test_what_counts_does_not_hang_on_interruptions_batch_or_workers(
    rule: str, folder: Path, full: Path, tmp_path: Path
) -> None:
    """On a CPU in float32: equal by key, tokens and log-probabilities to the bit."""
    rng = random.Random(rule)
    expected = offline(full, rule)
    every = drawn(full)
    for number, machine in enumerate(
        ({"max_sequences": 3}, {"max_sequences": 64}, {"max_sequences": 5, "block_size": 8},
         {"max_sequences": 4, "workers": 2})
    ):  # fmt: skip
        path = tmp_path / f"{number}.jsonl"
        for _ in range(2):
            try:
                run_job(configure(folder, rule, **machine), path, watcher=Stop(rng.randint(1, 25)))
            except Interrupted:
                continue
        run_job(configure(folder, rule, **machine), path)
        decisions, records = what_counts(path)
        assert decisions == expected
        wanted = {(p, i) for p, (count, _) in expected.items() for i in range(count)}
        assert records == {key: every[key] for key in wanted}


@pytest.mark.slow
def test_right_ends_with_so_many_right_samples(folder: Path, full: Path, tmp_path: Path) -> None:
    answer = ANSWER | {"gold": {"field": "question", "pattern": "^(.)"}}
    configuration = configure(folder, "right=2", samples=SAMPLES)
    configuration = configuration.model_copy(
        update={"answer": type(configuration.answer).model_validate(answer)}  # type: ignore
    )
    path = tmp_path / "a.jsonl"
    run_job(configuration, path)
    found = one_job(path)
    stopped = Stopped.of(found)
    assert stopped is not None and stopped.enough == 2 and stopped.first == 2
    for deciding in stopped.problems.values():
        assert deciding.standing.right == 2 or deciding.counted == SAMPLES


def test_a_plan_tells_what_a_rule_may_save(folder: Path) -> None:
    plan = plan_job(configure(folder, "decided"))
    assert (plan.rule, plan.wave, plan.resident) == ("decided", 5, True)
    assert plan_job(configure(folder)).rule is None
    small = plan_job(configure(folder, "decided", kv_cache_memory=70_000))
    assert not small.resident


def test_a_failed_sample_counts_as_unreadable() -> None:
    stopped = Stopped(configure_rule("decided"), 3)
    stopped.note(Record("p", 0, "h", error="NaN"))
    assert stopped.note(Record("p", 1, "h", answer="7"))
    [deciding] = stopped.problems.values()
    assert deciding.is_decided and deciding.standing.leader == "7" and deciding.counted == 2


def configure_rule(text: str) -> Any:
    from sharegen.common.stop_rule import StopRule

    return StopRule.parse(text)


@pytest.mark.parametrize(
    ("rule", "flags", "line"),
    [
        ("decided", {"samples": 1}, "a vote takes at least 2 samples: give --samples"),
        ("right=11", {}, "only 10 samples are drawn of a problem: give more --samples"),
        ("window=12", {}, "only 10 samples are drawn"),
        ("right=2", {}, r"knows no gold answers \(`answer.gold`\)"),
        ("sometimes", {}, "not a rule: decided, confident"),
        ("confident=2", {}, "above 0.5 and below 1"),
    ],
)
def test_rules_that_could_stop_nothing(
    rule: str, flags: Any, line: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gold = None if rule == "right=2" else {"field": "answer"}
    monkeypatch.setitem(ANSWER, "gold", gold)
    with pytest.raises(UsageError, match=line):
        configure(folder, rule, **flags)


def test_a_rule_without_answers(folder: Path) -> None:
    given = {"model": str(folder / "model"), "sampling": {"samples": 4, "stop_when": "decided"}}
    with pytest.raises(UsageError, match="takes no answers out of its samples"):
        resolve("prompts", str(folder / "rows.jsonl"), given)
    given["sampling"] = {"samples": 4, "stop_when": "confident", "temperature": 0}  # type: ignore
    with pytest.raises(UsageError, match="at temperature 0 all samples of a problem are one"):
        resolve("self-consistency", str(folder / "rows.jsonl"), given)


@pytest.mark.slow
def test_journals_stopped_differently_are_not_read_as_one(folder: Path, tmp_path: Path) -> None:
    for name, rule in (("a", "decided"), ("b", "window=3")):
        run_job(configure(folder, rule), tmp_path / f"{name}.jsonl")
    from sharegen.results.journal.pool import pool

    [both] = pool([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    with pytest.raises(UsageError, match=r"stopped differently \(decided of 10 and window=3 of 10"):
        Stopped.of(both)


@pytest.mark.turn(4)
@pytest.mark.parametrize("rule", ["decided", "window=3"])
def test_a_job_that_goes_on_reads_what_is_on_record_by_the_recipe_as_it_is_now(
    folder: Path, full: Path, tmp_path: Path, rule: str
) -> None:
    """The first run finds no answers, so that nothing is decided; then the pattern is mended."""
    path = tmp_path / "a.jsonl"
    blind = {"extract": None, "patterns": ["never"], "gold": None}
    job = configure(folder, rule, samples=4)
    run_job(job.model_copy(update={"answer": validate(Answer, blind, "blind")}), path)
    before = path.read_bytes()
    run_job(configure(folder, rule), path)
    assert path.read_bytes().startswith(before)
    assert what_counts(path)[0] == offline(full, rule)
    assert run_job(configure(folder, rule), path).drawn == 0
