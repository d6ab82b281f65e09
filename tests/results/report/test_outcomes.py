"""A journal becomes problems with verdicts; what is not a scored journal is said in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharegen.errors import DataError, JournalError
from sharegen.results.journal.record import read
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.results.report.measure import headline, measure, settings
from sharegen.results.report.outcomes import read_run, read_runs
from sharegen.results.scoring.score_file import scores_path
from sharegen.results.scoring.vote import tally
from tests.results.report_journals import (
    sample,
    write_code,
    write_lines,
    write_maths,
    write_run_file,
)


def scores(journal: Path, *rows: tuple[str, int, str], **more: object) -> None:
    lines = [
        {"problem_id": p, "sample": i, "passed": result == "passed", "result": result} | more
        for p, i, result in rows
    ]
    write_lines(scores_path(journal), lines)


def test_samples_are_judged_by_their_answers(tmp_path: Path) -> None:
    answers = ["$18.00", None, "20", "18", "."]
    rows = [sample("p", i, answer=answer, gold="18.0") for i, answer in enumerate(answers)]
    bad = {"problem_id": "q", "sample": None, "prompt_hash": None, "error": "no question"}
    path = write_lines(tmp_path / "run.jsonl", [*reversed(rows), bad])
    run = read_run(path, "run")
    (outcome,) = run.outcomes
    assert [s.index for s in outcome.samples] == [0, 1, 2, 3, 4]
    assert [s.right for s in outcome.samples] == [True, False, False, True, False]
    assert (outcome.judged, outcome.right, outcome.winner, outcome.vote_right) == (5, 2, "18", True)
    assert outcome.votes == {"18": 2, "20": 1}
    assert outcome.margin == pytest.approx(1 / 3)
    assert run.bad_rows == 1 and run.has_votes and run.has_verdicts


def test_answers_are_compared_as_score_does(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    answers = ["1 + x", "x+1", "x + 2", "(x+1)", None]
    rows = [sample("p", i, answer=answer, gold="x+1") for i, answer in enumerate(answers)]
    path = write_lines(tmp_path / "run.jsonl", rows)
    (outcome,) = read_run(path, "run").outcomes
    (vote,) = tally(read(path))
    assert tuple(s.key for s in outcome.samples) == vote.answers
    assert [s.right for s in outcome.samples] == [
        bool(vote.right.get(k or "")) for k in vote.answers
    ]
    assert (outcome.winner, outcome.vote_right) == (vote.answer, vote.correct)
    assert "then by math-verify" in next(iter(read_run(path, "run").notes))
    assert [s.right for s in outcome.samples] == [True, True, False, True, False]


def test_without_gold_there_is_a_vote_and_no_verdict(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "run.jsonl", [sample("p", i, answer="3") for i in range(2)])
    run = read_run(path, "run")
    (outcome,) = run.outcomes
    assert (outcome.winner, outcome.vote_right, outcome.margin) == ("3", None, 1.0)
    assert not run.has_verdicts


def test_scores_judge_before_answers(tmp_path: Path) -> None:
    rows = [sample("p", i, answer="1/2", gold="0.50") for i in range(4)]
    path = write_lines(tmp_path / "run.jsonl", rows)
    scores(path, ("p", 0, "passed"), ("p", 1, "wrong answer"), ("p", 2, "unscorable"))
    run = read_run(path, "run")
    (outcome,) = run.outcomes
    assert [s.right for s in outcome.samples] == [True, False, None, None]
    assert (outcome.judged, outcome.right) == (2, 1)
    assert list(run.notes) == [
        "1 of 4 samples are not scored yet and are left out",
        "1 samples are unscorable and are left out",
    ]


def test_difficulty_comes_with_the_scores(tmp_path: Path) -> None:
    run = read_run(write_code(tmp_path / "code.jsonl"), "code")
    assert [o.difficulty for o in run.outcomes[:3]] == ["introductory", "interview", "competition"]
    assert not run.has_votes


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = write_code(tmp_path / "code.jsonl")
    for file in (path, scores_path(path)):
        with open(file, "a") as end:
            end.write('{"problem_id": "77", "sam')
    assert len(read_run(path, "code").outcomes) == 9


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, JournalError, ["none.jsonl", "cannot be read"]),
        ("", DataError, ["is empty", "run the job first"]),
        (
            '{"problem_id": "p", "sample": null, "prompt_hash": null, "error": "bad"}\n',
            DataError,
            ["1 bad rows and no sample"],
        ),
        ("{}\n", JournalError, ["line 1", "problem_id"]),
        ("program\n", JournalError, ["line 1", "not JSON"]),
    ],
)
def test_what_is_no_journal(
    tmp_path: Path, content: str | None, error: type[Exception], words: list[str]
) -> None:
    path = tmp_path / "none.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error) as raised:
        read_run(path, "none")
    for word in words:
        assert word in str(raised.value)
    assert "\n" not in str(raised.value)


def test_code_without_scores_says_how_to_get_them(tmp_path: Path) -> None:
    path = write_code(tmp_path / "code.jsonl")
    scores_path(path).unlink()
    with pytest.raises(DataError, match=r"no scores yet: first `sharegen score .*code\.jsonl"):
        read_run(path, "code")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            {"problem_id": "other", "sample": 0, "passed": True, "result": "passed"},
            ["line 2", "'other'", "another journal's"],
        ),
        (
            {"problem_id": "0", "sample": 99, "passed": True, "result": "passed"},
            ["line 2", "sample 99", "another journal's"],
        ),
        ({"problem_id": "0", "sample": 1}, ["line 2", "`passed`"]),
        ([1], ["line 2", "not a score"]),
    ],
)
def test_scores_that_do_not_belong(tmp_path: Path, line: object, words: list[str]) -> None:
    path = write_code(tmp_path / "code.jsonl")
    beside = scores_path(path)
    first, *rest = beside.read_text().splitlines(keepends=True)
    beside.write_text(first + json.dumps(line) + "\n" + "".join(rest))
    with pytest.raises(DataError) as raised:
        read_run(path, "code")
    for word in words:
        assert word in str(raised.value)


def test_broken_scores_name_the_line(tmp_path: Path) -> None:
    path = write_code(tmp_path / "code.jsonl")
    beside = scores_path(path)
    beside.write_text("{broken\n" + beside.read_text())
    with pytest.raises(DataError, match=r"scores\.jsonl, line 1: is not JSON"):
        read_run(path, "code")


def test_runs_are_named_apart(tmp_path: Path) -> None:
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(write_code(tmp_path / folder / "code.jsonl"))
    assert [run.name for run in read_runs([*paths, paths[0]])] == ["a/code", "b/code"]
    assert [run.name for run in read_runs(paths[:1])] == ["code"]


def test_a_name_that_is_no_text_can_be_printed(tmp_path: Path) -> None:
    path = write_maths(tmp_path / "\udcff.jsonl", problems=1, samples=1)
    assert [run.name for run in read_runs([path])] == ["?"]


def test_headline_and_settings(tmp_path: Path) -> None:
    path = write_maths(tmp_path / "run.jsonl", problems=4, samples=5)
    write_run_file(
        path,
        configuration={"model": "m", "sampling": {"stop": ["\n\n"], "seed": 0}},
        extent={"sampling": {"samples": 5}, "dataset": {"limit": None}},
        timings={"sampling_seconds": 4.0},
        stats={
            "prompt_tokens_asked": 9000,
            "prompt_tokens_computed": 450,
            "peak_blocks": 30,
            "blocks_total": 64,
            "generated_tokens": 600,
            "plan": {"kv_shared_bytes": 2048, "kv_unshared_bytes": 40960},
        },
    )
    measured = measure(read_run(path, "run"))
    table = {what: (value, how) for what, value, how in headline(measured)}
    assert table["problems"] == ("4", "")
    assert table["completions"] == ("20", "5 a problem")
    assert table["tokens per second"][0] == "150"
    assert table["prompt tokens computed"] == ("450", "9,000 asked: 20.0x fewer")
    assert table["KV of the prompts"] == ("2 KiB", "40 KiB unshared: 20.0x less")
    assert table["peak KV blocks"] == ("30", "of 64")
    assert {"right, a single sample", "right, the vote over 5", "right, any of 5"} <= set(table)
    assert dict(settings([measured.run])) == {
        "model": ["m"],
        "sampling.stop": ["'\\n\\n'"],
        "sampling.seed": ["0"],
        "sampling.samples": ["5"],
        "dataset.limit": ["none"],
    }


@pytest.mark.parametrize("progress", [None, 3, [], [[1]], [["a", 2]], [[1, None]]])
def test_progress_that_is_none_draws_nothing(tmp_path: Path, progress: object) -> None:
    path = write_maths(tmp_path / "run.jsonl", problems=1, samples=1)
    write_run_file(path, timings={"progress": progress})
    assert measure(read_run(path, "run")).rate == ()


def test_rates_keep_every_token(tmp_path: Path) -> None:
    path = write_maths(tmp_path / "run.jsonl", problems=1, samples=1)
    progress = [[second * 0.5, second**2] for second in range(1, 501)]
    write_run_file(path, timings={"progress": progress})
    rate = measure(read_run(path, "run")).rate
    assert 50 <= len(rate) <= 60 and rate[-1][0] == 250.0
    starts = [0.0, *(end for end, _ in rate)]
    tokens = sum(speed * (end - start) for start, (end, speed) in zip(starts, rate, strict=False))
    assert tokens == pytest.approx(500**2)


def test_files_of_different_datasets_are_told_apart(tmp_path: Path) -> None:
    paths = []
    for name, dataset in (("a", "x"), ("b", "x"), ("c", "y"), ("d", None)):
        paths.append(write_lines(tmp_path / f"{name}.jsonl", [sample("p", 0, answer="3")]))
        fingerprints = {"dataset": dataset} if dataset else {}
        RunFile(fingerprints=fingerprints).write(run_file_path(paths[-1]))
    notes = [list(run.notes) for run in read_runs(paths)]
    said = "its dataset is not the one of a: problems are matched by id alone"
    assert notes == [[], [], [said], []]


def test_shards_with_scores_of_their_own_are_one_run(tmp_path: Path) -> None:
    shards = [
        write_code(tmp_path / f"a.shard-{index}-of-2.jsonl", problems=problems)
        for index, problems in ((1, 4), (2, 6))
    ]
    (run,) = read_runs([tmp_path / "a.jsonl"])
    assert (run.name, run.path, len(run.outcomes)) == ("a", tmp_path / "a.jsonl", 6)
    assert [outcome.judged for outcome in run.outcomes] == [10] * 6
    assert run.outcomes[5].difficulty == "competition"
    assert len(read_runs(shards[:1])[0].outcomes) == 4
    assert [each.name for each in read_runs(shards)] == ["a"]
