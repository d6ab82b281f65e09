"""FILE.scores.jsonl: appended, continued, refused under other settings, never torn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharegen.errors import JournalError
from sharegen.results.scoring.score import Score
from sharegen.results.scoring.score_file import ScoreFile, discard_scores, hash_of, scores_path

SETTINGS = {"schema": "apps", "timeout": 4.0}


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def fill(samples: Path, count: int = 3) -> Path:
    with ScoreFile(samples, SETTINGS) as file:
        for index in range(count):
            passed = Score("passed" if index else "wrong answer", index, 0.25)
            file.append("p/1", index, passed, "easy" if index else None)
    return scores_path(samples)


def test_lines_hold_what_they_should(samples: Path) -> None:
    path = fill(samples)
    assert path.name == "samples.jsonl.scores.jsonl"
    first, second, _ = map(json.loads, path.read_text().splitlines())
    assert first == {
        "problem_id": "p/1",
        "sample": 0,
        "passed": False,
        "result": "wrong answer",
        "tests_passed": 0,
        "seconds": 0.25,
        "completion": None,
        "tests": None,
    }
    assert second["passed"] is True and second["difficulty"] == "easy"


def test_it_continues_and_drops_a_torn_line(samples: Path) -> None:
    path = fill(samples)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with ScoreFile(samples, SETTINGS) as file:
        assert set(file.verdicts) == {("p/1", 0), ("p/1", 1)}
        file.append("p/1", 2, Score("passed", 2, 0.25), "easy")
    assert path.read_bytes() == whole


def test_other_settings_are_refused_by_name(samples: Path) -> None:
    before = fill(samples).read_bytes()
    with pytest.raises(JournalError, match=r"timeout was 4\.0 and is now 5\.0.*--overwrite"):
        ScoreFile(samples, SETTINGS | {"timeout": 5.0})
    assert scores_path(samples).read_bytes() == before
    with ScoreFile(samples, SETTINGS | {"timeout": 5.0}, overwrite=True) as file:
        assert not file.verdicts


def test_a_verdict_stands_for_its_text_and_its_tests(samples: Path) -> None:
    """Another program, or other tests, have none; what was judged before is known again."""
    with ScoreFile(samples, SETTINGS) as file:
        file.append("a", 0, Score("passed", 1, 0.1), None, hash_of("one"), "t")
        file.append("a", 0, Score("wrong answer", 0, 0.1), None, hash_of("two"), "t")
    with ScoreFile(samples, SETTINGS) as file:
        results = [
            verdict and verdict.result
            for completion, tests in (("one", "t"), ("two", "t"), ("three", "t"), ("one", "u"))
            for verdict in [file.standing("a", 0, hash_of(completion), tests)]
        ]
        assert results == ["passed", "wrong answer", None, None]
        assert file.standing("a", 1, hash_of("one"), "t") is None
        assert file.verdicts["a", 0].result == "wrong answer"
    for text in ("", "\ud800", "a\0"):
        assert len(hash_of(text)) == 16


def test_what_is_kept_of_samples_that_are_no_more_goes(samples: Path) -> None:
    path = fill(samples)
    discard_scores(samples)
    assert not path.exists() and not list(path.parent.iterdir())
    discard_scores(samples)


def test_two_writers_are_refused(samples: Path) -> None:
    with ScoreFile(samples, SETTINGS), pytest.raises(JournalError, match="another process"):
        ScoreFile(samples, SETTINGS)


@pytest.mark.parametrize("line", ["{}", "no JSON", '{"problem_id": 1}', "[]", "null"])
def test_a_broken_line_is_named(samples: Path, line: str) -> None:
    path = fill(samples)
    content = path.read_text() + line + "\n" + path.read_text()
    path.write_text(content)
    with pytest.raises(JournalError, match="line 4: is not a score"):
        ScoreFile(samples, SETTINGS)
    assert path.read_text() == content


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be written: No such file"):
        ScoreFile(tmp_path / "missing" / "a.jsonl", SETTINGS)
