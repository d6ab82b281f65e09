"""What counts of a journal that a rule stopped, in every command that reads one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.common.stop_rule import StopRule
from sharegen.engine.config import EngineStats
from sharegen.errors import UsageError
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.pool import Pool, one_job, pool
from sharegen.results.journal.run_file import RunFile
from sharegen.results.report.measure import headline, measure
from sharegen.results.report.outcomes import read_run
from sharegen.results.scoring.vote import tally
from sharegen.results.screen.accuracy import accuracy
from sharegen.results.screen.progress import Progress
from sharegen.results.screen.show import describe
from sharegen.results.stopping.savings import stopping_rows
from sharegen.results.stopping.stopped import Stopped, counted
from tests.results.stopped_journals import journal


def stopped_of(path: Path) -> Stopped:
    stopped = Stopped.of(one_job(path))
    assert stopped is not None
    return stopped


def test_the_samples_that_decided_count(tmp_path: Path) -> None:
    path = journal(tmp_path / "a.jsonl")
    stopped = stopped_of(path)
    assert {p[0]: (d.counted, d.is_decided) for p, d in stopped.problems.items()} == {
        "a": (3, True), "b": (3, True), "c": (6, True), "d": (1, False)
    }  # fmt: skip
    votes = tally(counted(one_job(path).records(), stopped))
    assert [(v.answer, v.samples) for v in votes] == [("7", 3), ("8", 3), ("1", 6), ("5", 1)]
    assert (stopped.first, stopped.enough, stopped.beyond, stopped.decided) == (3, None, 5, 3)
    assert "13 of 24 samples count, 3 of 4 problems are decided; 5 more" in stopped.in_words()
    result = accuracy(votes, stopped)
    assert result is not None and result.sample == pytest.approx(3 / 10)  # of the first three each
    assert Stopped.of(one_job(journal(tmp_path / "b.jsonl", None))) is None


def test_a_problem_shows_which_samples_count_and_what_decided(tmp_path: Path) -> None:
    path = journal(tmp_path / "a.jsonl")
    records = sorted(
        (r for r in one_job(path).records() if r.problem_id == "b"), key=lambda r: r.sample or 0
    )
    text = "\n".join(describe(records, None, stopped_of(path)))
    assert text.count("beyond the decision: does not count") == 2
    assert "decided: decided after 3 of 6 samples" in text


def test_what_was_saved_and_what_is_known_of_the_full_vote(tmp_path: Path) -> None:
    path = journal(tmp_path / "a.jsonl", "window=2")
    found, stopped = one_job(path), stopped_of(path)
    drawn = [record for record in found.records() if record.is_sample]
    votes = tally(counted(drawn, stopped))
    run = RunFile(stats={"cancelled": 2, "cancelled_tokens": 9})
    rows = dict(stopping_rows(run, drawn, votes, stopped))
    assert rows["saved"].startswith("[bold]6 of 24 samples[/] (25.0%), about 51 tokens; 2 of")
    assert rows["the vote over all"] == "is known of 3 of 4 problems, and has the same winner in 3"


def test_a_report_is_made_of_the_samples_that_count(tmp_path: Path) -> None:
    run = read_run(journal(tmp_path / "a.jsonl"), "a")
    assert [len(outcome.samples) for outcome in run.outcomes] == [3, 3, 6, 1]
    assert any("stopped by decided: 13 of 24 samples count" in note for note in run.notes)
    measured = measure(run)
    assert measured.budget == 3 and measured.majority is not None
    rows = {what: value for what, value, _ in headline(measured)}
    assert rows["right, the vote (decided)"] == "25.0%"


def test_journals_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    one, other = journal(tmp_path / "a.jsonl"), journal(tmp_path / "b.jsonl", "window=2")
    with pytest.raises(UsageError, match=r"stopped differently \(decided of 6 and window=2 of 6\)"):
        Stopped.of(pool([one, other])[0])
    seeds = [one, journal(tmp_path / "c.jsonl", seed=1)]
    with pytest.raises(UsageError, match="samples of several seeds"):
        Stopped.of(pool(seeds, seeds=True)[0])


def test_a_run_of_the_whole_job_says_the_rule_for_its_shards(tmp_path: Path) -> None:
    shard = journal(tmp_path / "a.shard-1-of-2.jsonl", "window=2")
    whole = journal(tmp_path / "a.jsonl")
    stopped = Stopped.of(Pool([FoundJournal(whole), FoundJournal(shard)]))
    assert stopped is not None and stopped.rule == StopRule("decided")


def test_the_bar_expects_of_the_others_what_the_decided_ones_took() -> None:
    status = EngineStats()
    bar = Progress(status, 100, 10, None)
    assert bar.expected == 100
    bar.save(10, 4)
    bar.save(10, 2)
    assert (bar.saved, bar.expected) == (6, 70)
    assert "6 saved, about 70 expected" in bar.describe()
