"""`sharegen report`: curves on stdout, pictures and a page on request, mistakes in one line."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path

import pytest

from sharegen.results.scoring.score_file import scores_path
from sharegen.workload.configuration import resolve
from sharegen.workload.problem import load_problems
from tests.cli.conftest import Command
from tests.results.report_journals import (
    sample,
    write_code,
    write_lines,
    write_maths,
    write_run_file,
)


def test_the_curve_goes_to_stdout(sharegen: Command, tmp_path: Path) -> None:
    write_maths(tmp_path / "run.jsonl")
    ran = sharegen("report", "run.jsonl")
    assert ran.code == 0 and ran.err == ""
    assert "pass@k" in ran.out and "maj@k" in ran.out


def test_pictures_and_page(sharegen: Command, tmp_path: Path) -> None:
    write_maths(tmp_path / "a.jsonl")
    write_code(tmp_path / "b.jsonl")
    ran = sharegen("report", "a.jsonl", "b.jsonl", "--html", "new/r.html", "-o", "pictures")
    assert ran.code == 0, ran.err
    assert (tmp_path / "new" / "r.html").read_text().startswith("<!doctype html>")
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"curve.svg", "difficulty.svg", "margins.svg", "lengths.svg"} <= names
    assert ran.err.count("written: ") == 1 + len(names)
    assert sharegen("report", "a.jsonl", "-o", "a").code == 0  # a folder beside a.run.json
    ran = sharegen("report", "a.jsonl", "-o", "sheet.svg")
    assert ran.code == 0 and (tmp_path / "sheet.svg").exists()


def test_a_journal_without_verdicts(sharegen: Command, tmp_path: Path) -> None:
    write_lines(tmp_path / "free.jsonl", [sample("p", i) for i in range(3)])
    ran = sharegen("report", "free.jsonl", "--html", "free.html")
    assert ran.code == 0 and ran.out == ""
    assert "there are no curves" in ran.err and (tmp_path / "free.html").exists()


def test_a_real_job_shows_its_questions(
    sharegen: Command, tmp_path: Path, job: list[object]
) -> None:
    assert sharegen(*job).code == 0
    ran = sharegen("report", "out.jsonl", "--html", "out.html")
    assert ran.code == 0, ran.err
    assert "without the questions" not in ran.err
    text = (tmp_path / "out.html").read_text()
    (index,) = re.findall(r'id="index">(.*?)</script>', text)
    assert "Tom has 6 apples" in json.loads(index)["snippets"][0]
    (bundle,) = re.findall(r'id="bundle-0">(.*?)</script>', text)
    first = json.loads(gzip.decompress(base64.b64decode(bundle)))[0]
    assert first["prompt"].startswith("Question: Tom has 6 apples")
    assert len(first["samples"]) == 3
    assert "all prompts begin with" in text  # the few-shot examples, once


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["none.jsonl"], 1, ["none.jsonl", "cannot be read"]),
        (["empty.jsonl"], 1, ["empty.jsonl", "is empty"]),
        (["unscored.jsonl"], 1, ["no scores yet", "sharegen score unscored.jsonl --execute"]),
        (["a.jsonl", "--html", "a.jsonl"], 2, ["--html a.jsonl", ".html"]),
        (["a.jsonl", "--output", "a.jsonl"], 2, ["--output a.jsonl", "must end in .svg"]),
        (["a.jsonl", "--html", "b.html"], 2, ["--html b.html is a journal"]),
        (["a.jsonl", "--output", "a.run.json"], 2, ["--output a.run.json", "must end in .svg"]),
        (["a.jsonl", "--output", "a.gif"], 2, ["--output a.gif", "must end in .svg"]),
        (["a.jsonl", "--output", "a.png"], 2, ["--output a.png", "must end in .svg"]),
        (["a.jsonl", "--output", "a.jsonl/r.svg"], 1, ["cannot be written"]),
        (["a.jsonl", "--html", "a.jsonl/r.html"], 1, ["cannot be written"]),
        ([], 2, ["FILE"]),
    ],
)
def test_bad_input_is_one_line(
    sharegen: Command, tmp_path: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    write_maths(tmp_path / "a.jsonl")
    (tmp_path / "empty.jsonl").touch()
    write_code(tmp_path / "unscored.jsonl")
    scores_path(tmp_path / "unscored.jsonl").unlink()
    before = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "b.html").write_bytes(before)
    ran = sharegen("report", *arguments)
    assert ran.code == code, ran.err
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.html").read_bytes() == before
    assert len(ran.err.strip().splitlines()) == 1 and "Traceback" not in ran.err
    for word in words:
        assert word in ran.err


def test_a_page_needs_no_matplotlib(
    sharegen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_maths(tmp_path / "run.jsonl")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    ran = sharegen("report", "run.jsonl", "--html", "r.html", "-o", "r.svg")
    assert ran.code == 0 and "pass@k" in ran.out
    assert (tmp_path / "r.html").read_text().count("<svg ") == 4 and (tmp_path / "r.svg").exists()


def test_json_is_all_of_stdout(sharegen: Command, tmp_path: Path) -> None:
    write_maths(tmp_path / "a.jsonl")
    write_maths(tmp_path / "b.jsonl", problems=5, samples=4, seed=1)
    ran = sharegen("report", "a.jsonl", "b.jsonl", "--json")
    found = json.loads(ran.out)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text()
    said = page[page.index("`report --json`") :]
    for key in (*found, *found["runs"][0], *found["comparisons"][0]):
        assert f"`{key}`" in said, key
    assert [run["problems"] for run in found["runs"]] == [12, 5]
    assert {each["k"] for each in found["comparisons"]} == {1, 4}
    for point in found["runs"][1]["curves"]["pass@k"]:
        assert 0 <= point["low"] <= point["mean"] <= point["high"] <= 1


def test_difficulty_comes_from_the_dataset(sharegen: Command, tmp_path: Path) -> None:
    """A scored APPS job whose scores do not say it; and the same with the dataset gone."""
    levels = ("introductory", "interview", "interview", "competition")
    rows = [
        {
            "problem_id": number,
            "question": f"Print {number}.",
            "solutions": json.dumps([f"print({number})"]),
            "input_output": json.dumps({"inputs": [""], "outputs": [f"{number}\n"]}),
            "difficulty": level,
            "url": "",
            "starter_code": "",
        }
        for number, level in enumerate(levels)
    ]
    dataset = write_lines(tmp_path / "apps.jsonl", rows)
    flags = {"model": "m", "few_shot": {"k": 0}, "dataset": {"rows": "apps"}}
    job = resolve("code-sample", str(dataset), flags)
    lines, scores = [], []
    for problem in load_problems(job):
        for index in range(3):
            line = sample(problem.id, index, "print(0)", prompt_hash=problem.prompt_hash)
            lines.append(line)
            score = {"problem_id": problem.id, "sample": index, "passed": problem.id == "0"}
            result = "passed" if problem.id == "0" else "wrong answer"
            scores.append(score | {"result": result, "tests_passed": 0, "seconds": 0.1})
    journal = write_lines(tmp_path / "code.jsonl", lines)
    write_lines(scores_path(tmp_path / "code.jsonl"), scores)
    write_run_file(journal, configuration=job.identity, extent=job.extent)
    ran = sharegen("report", "code.jsonl", "-o", "with")
    assert ran.code == 0 and (tmp_path / "with" / "difficulty.svg").exists(), ran.err
    dataset.unlink()
    ran = sharegen("report", "code.jsonl", "-o", "without", "--html", "page.html")
    assert ran.code == 0 and "goes without the questions" in ran.err
    assert (tmp_path / "page.html").exists()
    assert not (tmp_path / "without" / "difficulty.svg").exists()
