"""`code-sample`, `score` and `convert` as commands, from dataset to pass@k."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.results.scoring.score_file import scores_path
from sharegen.workload.configuration import resolve
from tests.cli.conftest import Command, write_jsonl
from tests.results.sandboxes import isolation

APPS: list[dict[str, Any]] = [
    {
        "problem_id": number,
        "question": f"Add {number} to the number.",
        "solutions": json.dumps([f"print(int(input()) + {number})"]),
        "input_output": json.dumps(
            {"inputs": ["1\n", "5\n"], "outputs": [f"{number + 1}\n", f"{number + 5}\n"]}
        ),
        "difficulty": ("introductory", "interview")[number % 2],
        "starter_code": "",
    }
    for number in range(4)
]  # fmt: skip
HUMANEVAL = [
    {
        "task_id": f"Add/{number}",
        "prompt": f'def add(x):\n    """Add {number}."""\n',
        "entry_point": "add",
        "canonical_solution": f"    return x + {number}\n",
        "test": f"def check(candidate):\n    assert candidate(1) == {number + 1}\n",
    }
    for number in range(3)
]

SMALL = ["-n", 2, "--max-tokens", 6, "--kv-cache-memory", "4MiB", "--quiet"]


@pytest.fixture(autouse=True)
def _isolated() -> None:
    isolation()


@pytest.fixture
def apps(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "apps.jsonl", APPS)


@pytest.fixture
def humaneval(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "humaneval.jsonl", HUMANEVAL)


def journal_of(path: Path, dataset: Path, completions: dict[str, list[str]], **flags: Any) -> Path:
    """A finished journal as a run with these completions would leave it."""
    job = resolve("code-sample", str(dataset), {"model": "none", "few_shot": {"k": 0}} | flags)
    records = [
        Record(problem, index, "hash", text)
        for problem, texts in completions.items()
        for index, text in reversed(list(enumerate(texts)))
    ]
    path.write_bytes(b"".join(record.to_line() for record in records))
    RunFile(configuration=job.identity, extent=job.extent).write(run_file_path(path))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


RIGHT = {str(n): [f"print(int(input()) + {n})", "print(0)", "1 +"] for n in range(4)}


@pytest.mark.turn(4)
def test_sample_then_score_then_convert(sharegen: Command, model: Path, apps: Path) -> None:
    ran = sharegen("code-sample", apps, "--model", model, "--few-shot", 0, *SMALL, "-o", "a.jsonl")
    assert (ran.code, ran.out) == (0, "a.jsonl\n"), ran.err
    assert len(lines(Path("a.jsonl"))) == 8
    same = sharegen("run", "code-sample", "--dataset", apps, "--model", model, "--few-shot", 0,
                    *SMALL, "-o", "b.jsonl")  # fmt: skip
    assert same.code == 0
    assert sorted(Path("a.jsonl").read_text()) == sorted(Path("b.jsonl").read_text())
    assert sharegen("score", "a.jsonl", "--execute").code == 0
    scores = lines(Path(".sharegen/a.jsonl.scores.jsonl"))
    assert {(s["problem_id"], s["sample"]) for s in scores} == {
        (str(n), i) for n in range(4) for i in range(2)
    }
    Path(".sharegen/b.jsonl.scores.jsonl").write_text("of the former one")
    assert sharegen("code-sample", apps, "--model", model, "--few-shot", 0, *SMALL, "-o", "b.jsonl",
                    "--overwrite").code == 0  # fmt: skip
    assert not Path(".sharegen/b.jsonl.scores.jsonl").exists()
    for kind, output in (("human-eval", "a.human-eval.jsonl"), ("monkeys", "a.monkeys")):
        ran = sharegen("convert", "a.jsonl", "--format", kind)
        assert (ran.code, ran.out) == (0, f"{output}\n")
        assert Path(output).exists()


def test_a_run_writes_a_journal_whatever_the_format(
    sharegen: Command, model: Path, apps: Path
) -> None:
    command = ["code-sample", apps, "--model", model, "--few-shot", 0, *SMALL, "-o", "a.jsonl",
               "--format", "bigcode", "--difficulty", "interview"]  # fmt: skip
    ran = sharegen(*command)
    assert (ran.code, ran.out) == (0, "a.jsonl\na.bigcode.json\n")
    assert [len(programs) for programs in json.loads(Path("a.bigcode.json").read_text())] == [
        *(0, 2),
        *(0, 2),
    ]
    before = Path("a.jsonl").read_text()
    assert sharegen(*command, "-n", 3).code == 0
    assert Path("a.jsonl").read_text().startswith(before)
    assert [len(p) for p in json.loads(Path("a.bigcode.json").read_text())] == [0, 3, 0, 3]


def test_few_shot_comes_from_a_file_and_plan_shows_the_tree(
    sharegen: Command, model: Path, apps: Path
) -> None:
    ran = sharegen("plan", "code-sample", "--dataset", apps, "--few-shot-file", apps, "--model",
                   model, "-n", 5)  # fmt: skip
    assert ran.code == 0 and "problem 1" in ran.out, ran.err
    ran = sharegen("code-sample", apps, "--model", model, *SMALL)
    assert ran.code == 1 and "--few-shot-file" in ran.err


@pytest.mark.turn(4)
def test_scores_and_the_table(sharegen: Command, apps: Path, tmp_path: Path) -> None:
    journal = journal_of(tmp_path / "a.jsonl", apps, RIGHT)
    ran = sharegen("score", journal, "--execute")
    assert ran.code == 0
    said = next(line for line in ran.err.splitlines() if line.startswith("sandbox: "))
    assert "memory is limited by a cgroup" in said or "no memory cgroup" in said
    by_sample = {
        (s["problem_id"], s["sample"]): s for s in lines(scores_path(tmp_path / "a.jsonl"))
    }
    assert len(by_sample) == 12
    for number in range(4):
        first, second, third = (by_sample[str(number), sample] for sample in range(3))
        assert (first["passed"], first["result"], first["tests_passed"]) == (True, "passed", 2)
        assert (second["passed"], second["result"]) == (False, "wrong answer")
        assert (third["passed"], third["result"]) == (False, "compile error")
        assert first["difficulty"] == APPS[number]["difficulty"] and first["seconds"] > 0
    for word in ("pass@1", "33.3%", "introductory", "interview", "all"):
        assert word in ran.out
    assert "pass@5" not in ran.out
    assert "passed 4" in ran.err and "compile error 4" in ran.err
    assert f"next: sharegen report {journal} --html {tmp_path / 'a.html'}" in ran.err


@pytest.mark.slow
@pytest.mark.turn(4)
def test_scoring_continues_and_then_needs_no_execution(
    sharegen: Command, apps: Path, tmp_path: Path
) -> None:
    journal = journal_of(tmp_path / "a.jsonl", apps, RIGHT)
    table = sharegen("score", journal, "--execute").out
    scores = scores_path(tmp_path / "a.jsonl")
    whole = lines(scores)
    kept = scores.read_text().splitlines(keepends=True)[:5]
    scores.write_text("".join(kept) + '{"problem_id": "3", "sam')
    refused = sharegen("score", journal)
    assert refused.code == 2 and "--execute" in refused.err
    assert sharegen("score", journal, "--execute").out == table
    assert scores.read_text().startswith("".join(kept))
    drop = ("seconds",)
    assert sorted(
        [(k, v) for k, v in sorted(s.items()) if k not in drop] for s in lines(scores)
    ) == sorted([(k, v) for k, v in sorted(s.items()) if k not in drop] for s in whole)
    assert sharegen("score", journal).out == table
    changed = sharegen("score", journal, "--execute", "--timeout", 9)
    assert changed.code == 1 and "timeout was 4.0 and is now 9.0" in changed.err


@pytest.mark.turn(4)
def test_verdicts_stand_when_the_dataset_grows_and_not_when_their_tests_change(
    sharegen: Command, apps: Path, tmp_path: Path
) -> None:
    journal = journal_of(tmp_path / "a.jsonl", apps, {"0": RIGHT["0"]})
    assert sharegen("score", journal, "--execute").code == 0
    scores = scores_path(tmp_path / "a.jsonl")
    before = scores.read_text()
    write_jsonl(apps, [*APPS, {**APPS[0], "problem_id": 4}])
    journal_of(tmp_path / "a.jsonl", apps, {"0": RIGHT["0"], "4": RIGHT["0"]})
    assert sharegen("score", journal, "--execute").code == 0
    assert scores.read_text().startswith(before) and len(lines(scores)) == 6
    write_jsonl(apps, [{**APPS[0], "input_output": APPS[1]["input_output"]}, *APPS[1:]])
    refused = sharegen("score", journal)
    assert refused.code == 2 and "3 samples are other ones" in refused.err
    assert sharegen("score", journal, "--execute").code == 0
    assert scores.read_text().startswith(before) and len(lines(scores)) == 9
    assert [line["passed"] for line in lines(scores)[-3:]] == [False, False, False]


@pytest.mark.slow
@pytest.mark.turn(4)
def test_other_programs_under_the_same_names_are_judged_anew(
    sharegen: Command, apps: Path, tmp_path: Path
) -> None:
    journal = journal_of(tmp_path / "a.jsonl", apps, {"0": RIGHT["0"][:1] * 2})
    assert "100.0%" in sharegen("score", journal, "--execute").out
    assert "100.0%" in sharegen("score", journal).out
    journal_of(tmp_path / "a.jsonl", apps, {"0": [RIGHT["0"][0], "print(1)"]})
    report = sharegen("report", journal)
    assert "1 of 2 samples are not scored yet" in report.out + report.err
    assert sharegen("score", journal).code == 2
    anew = sharegen("score", journal, "--execute")
    assert "50.0%" in anew.out and "1 sample is another one than when it was scored" in anew.err
    assert len(lines(scores_path(tmp_path / "a.jsonl"))) == 3
    journal_of(tmp_path / "a.jsonl", apps, {"0": RIGHT["0"][:1] * 2})
    assert "100.0%" in sharegen("score", journal).out  # known from before


@pytest.mark.turn(4)
def test_a_sample_that_failed_is_no_empty_program(
    sharegen: Command, apps: Path, tmp_path: Path
) -> None:
    """`print()` of nothing would be right where nothing is to be written."""
    empty = [{**APPS[0], "input_output": json.dumps({"inputs": ["1"], "outputs": [""]})}]
    write_jsonl(apps, empty)
    journal = journal_of(tmp_path / "a.jsonl", apps, {"0": ["print()", "print(1)"]})
    path = Path(tmp_path / "a.jsonl")
    other, drawn = path.read_text().splitlines()
    failed = {k: v for k, v in json.loads(other).items() if k != "completion"} | {"error": "NaN"}
    path.write_text(f"{drawn}\n{json.dumps(failed)}\n")
    ran = sharegen("score", journal, "--execute")
    assert "1 sample failed, and cannot be scored" in ran.err and "100.0%" in ran.out
    assert len(lines(scores_path(path))) == 1
    report = sharegen("report", journal)
    assert "1 of 2 samples failed" in report.out + report.err
    path.write_text(f"{drawn}\n{json.dumps(failed)}\n{other}\n")  # drawn again
    assert "50.0%" in sharegen("score", journal, "--execute").out


@pytest.mark.parametrize(
    "kind",
    [
        "human-eval",
        pytest.param("bigcode", marks=pytest.mark.slow),
        pytest.param("monkeys", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_converted_samples_score_the_same(
    sharegen: Command, humaneval: Path, tmp_path: Path, kind: str
) -> None:
    completions = {
        f"Add/{n}": [f"    return x + {n}\n", "    return 0\n", "    return x + 2\n"]
        for n in (0, 2)
    }
    journal = journal_of(tmp_path / "a.jsonl", humaneval, completions)
    assert sharegen("score", journal, "--execute").code == 0
    output = sharegen("convert", journal, "--format", kind).out.strip()
    refused = sharegen("score", output, "--execute")
    assert refused.code == 2 and "give --dataset" in refused.err
    ran = sharegen("score", output, "--execute", "--dataset", humaneval)
    assert ran.code == 0, ran.err

    def verdicts(path: str) -> set[tuple[str, int, bool]]:
        rows = lines(scores_path(Path(path)))
        return {(row["problem_id"], row["sample"], row["passed"]) for row in rows}

    assert verdicts(output) == verdicts(str(journal)) and len(verdicts(output)) == 6
    assert ("Add/2", 2, True) in verdicts(output) and ("Add/0", 2, False) in verdicts(output)


@pytest.mark.turn(4)
def test_chats_are_judged_by_the_program_in_them(
    sharegen: Command, humaneval: Path, tmp_path: Path
) -> None:
    answers = [
        "Sure:\n```python\ndef add(x):\n    return x + 1\n```\n```python\nprint(add(1))\n```\n",
        "```python\nprint(0)\n```\nor better\n```python\n    return x + 1\n```",
        "I cannot.",
    ]
    journal = journal_of(
        tmp_path / "a.jsonl", humaneval, {"Add/1": answers}, chat={"enabled": True}
    )
    assert sharegen("score", journal, "--execute").code == 0
    scores = {s["sample"]: s["result"] for s in lines(scores_path(tmp_path / "a.jsonl"))}
    assert scores == {0: "passed", 1: "passed", 2: "compile error"}
    assert sharegen("convert", journal, "--format", "human-eval", "-o", "h.jsonl").code == 0
    assert lines(Path("h.jsonl"))[0]["completion"] == "\ndef add(x):\n    return x + 1\n"


@pytest.mark.turn(4)
def test_problems_of_livecodebench_are_scored(sharegen: Command, tmp_path: Path) -> None:
    rows = [
        {
            "question_id": "script",
            "question_content": "Add 1.",
            "starter_code": "",
            "difficulty": "easy",
            "public_test_cases": json.dumps([{"input": "1\n", "output": "2\n"}]),
            "private_test_cases": json.dumps([{"input": "5\n", "output": "6\n"}]),
            "metadata": "{}",
        },
        {
            "question_id": "called",
            "question_content": "Add 1.",
            "starter_code": "class Solution:\n    def add(self, x: int) -> int:\n        ",
            "difficulty": "hard",
            "public_test_cases": json.dumps([{"input": "1", "output": "2"}]),
            "metadata": json.dumps({"func_name": "add"}),
        },
    ]
    dataset = write_jsonl(tmp_path / "live.jsonl", rows)
    method = "class Solution:\n    def add(self, x: int) -> int:\n        return x + 1\n"
    answers = {
        "script": [
            "```python\nprint(int(input()) + 1)\n```\nOutput:\n```\n2\n```\n",
            "```\n2\n```",
        ],
        "called": [f"```python\n{method}```\n```python\nprint(Solution().add(1))\n```", "2"],
    }
    journal = journal_of(tmp_path / "a.jsonl", dataset, answers, chat={"enabled": True})
    ran = sharegen("score", journal, "--execute")
    assert ran.code == 0 and "50.0%" in ran.out, ran.err
    assert ran.out.index("easy") < ran.out.index("hard")


@pytest.mark.turn(4)
def test_unscorable_problems_are_left_out(sharegen: Command, tmp_path: Path) -> None:
    rows = [
        APPS[0],
        APPS[1] | {"input_output": ""},
        APPS[2] | {"input_output": '{"inputs": [[1' + "0" * 5000},
    ]
    apps = write_jsonl(tmp_path / "apps.jsonl", rows)
    journal = journal_of(tmp_path / "a.jsonl", apps, {n: RIGHT[n] for n in "012"})
    ran = sharegen("score", journal, "--execute")
    assert ran.code == 0 and "unscorable 6" in ran.err and "33.3%" in ran.out
    only = journal_of(tmp_path / "b.jsonl", apps, {"1": RIGHT["1"]})
    ran = sharegen("score", only, "--execute")
    assert ran.code == 0 and "no problem can be scored" in ran.out


def test_mathematics_is_scored_from_answers_alone(sharegen: Command, tmp_path: Path) -> None:
    records = [
        Record(f"p{problem}", sample, "h", "text", answer=answer, gold="0.5")
        for problem in range(3)
        for sample, answer in enumerate(["1/2", "0.50", "3", None, "7"])
    ]
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"".join(record.to_line() for record in records))
    ran = sharegen("score", path)
    assert ran.code == 0, ran.err
    for word in ("pass@1", "40.0%", "pass@5", "maj@1", "maj@5", "100.0%"):
        assert word in ran.out
    ran = sharegen("score", path, "--k", 5, "--k", 6)
    assert ran.code == 0 and "pass@5" in ran.out
    assert "--k 6: no problem with 6 samples or more can be scored" in ran.err
    assert not scores_path(tmp_path / "m.jsonl").exists()


def error_of(sharegen: Command, *arguments: object) -> str:
    ran = sharegen(*arguments)
    assert ran.code in (1, 2) and ran.err.count("\n") == 1, ran.err
    assert "Traceback" not in ran.err and ran.out == ""
    return ran.err


@pytest.mark.turn(4)
def test_what_cannot_be_scored_is_one_line(
    sharegen: Command, apps: Path, humaneval: Path, tmp_path: Path
) -> None:
    journal = journal_of(tmp_path / "a.jsonl", apps, RIGHT)
    assert "no such file" in error_of(sharegen, "score", "missing.jsonl", "--execute")
    other = error_of(sharegen, "score", journal, "--execute", "--dataset", humaneval)
    assert "problem '3'" in other or "problem '0'" in other
    assert "another dataset" in other and not scores_path(tmp_path / "a.jsonl").exists()
    assert "unknown schema" in error_of(
        sharegen, "score", journal, "--execute", "--dataset", apps, "--schema", "nope"
    )
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    assert "neither a journal nor samples" in error_of(sharegen, "score", "x.jsonl", "--execute")
    unknown = error_of(sharegen, "score", journal, "--execute", "--dataset", "x.jsonl")
    assert "no known schema has the columns a" in unknown
    bare = write_jsonl(tmp_path / "bare.jsonl", [{"question": "?"}])
    untold = error_of(
        sharegen, "score", journal, "--execute", "--dataset", bare, "--schema", "apps"
    )
    assert "bare.jsonl, line 1: has no column 'input_output'" in untold
    assert "too little" in error_of(sharegen, "score", journal, "--execute", "--memory", 5)
    assert not scores_path(tmp_path / "a.jsonl").exists()
    broken = journal_of(tmp_path / "b.jsonl", apps, RIGHT)
    broken.write_text(broken.read_text() + "{no\n")
    ran = sharegen("score", broken, "--execute")
    assert ran.code == 0 and "b.jsonl, line 13: the line is not JSON" in ran.err
    assert len(scores_path(tmp_path / "b.jsonl").read_text().splitlines()) == 12
    apps.unlink()
    assert "apps.jsonl" in error_of(sharegen, "score", journal, "--execute")


def test_without_isolation_it_refuses(
    sharegen: Command, apps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sharegen.results.sandbox import host

    monkeypatch.setattr(host, "fault_of", lambda kind: f"{kind}: no namespaces here")
    journal = journal_of(tmp_path / "a.jsonl", apps, RIGHT)
    assert "--unsafe-execution" in error_of(sharegen, "score", journal, "--execute")
    assert not lines(scores_path(tmp_path / "a.jsonl"))
    assert "add --execute" in error_of(sharegen, "score", journal, "--unsafe-execution")


def test_what_cannot_be_converted_is_one_line(
    sharegen: Command, apps: Path, tmp_path: Path
) -> None:
    journal = journal_of(tmp_path / "a.jsonl", apps, RIGHT)
    other = journal_of(tmp_path / "b.jsonl", apps, RIGHT, sampling={"seed": 3})
    before = other.read_bytes()
    for output in (journal, other):
        message = error_of(sharegen, "convert", journal, "--format", "human-eval", "-o", output)
        assert "choose another --output" in message
    assert other.read_bytes() == before
    journal = journal_of(tmp_path / "a.jsonl", apps, {"99": ["x"]})
    message = error_of(sharegen, "convert", journal, "--format", "bigcode")
    assert "'99' is not in the dataset" in message
    run_file_path(journal).unlink()
    assert "a.run.json" in error_of(sharegen, "convert", journal, "--format", "monkeys")
    (tmp_path / "h.jsonl").write_text('{"task_id": "a", "completion": "b"}\n')
    assert "not a journal" in error_of(sharegen, "convert", "h.jsonl", "--format", "bigcode")
    assert "is the argument" in error_of(
        sharegen, "code-sample", apps, "--dataset", apps, "--model", "none"
    )
    assert "unknown schema" in error_of(
        sharegen, "code-sample", apps, "--schema", "nope", "--model", "none"
    )


def test_help_lists_what_code_sample_takes(sharegen: Command) -> None:
    lines = sharegen("code-sample", "--help").out.splitlines()
    listed = {line.split()[0] for line in lines if line.strip().startswith("-")}
    assert not listed & {"--dataset", "--document"}
    assert {"--dataset-config", "--schema", "--split"} <= listed


def test_a_name_that_is_nearly_a_preset_s(sharegen: Command) -> None:
    near = error_of(sharegen, "code-sample", "AAPS", "--model", "none")
    assert "did you mean 'apps'?" in near


@pytest.mark.turn(4)
def test_conversion_to_our_own_format_sorts_a_journal(
    sharegen: Command, apps: Path, tmp_path: Path
) -> None:
    shuffled = {key: RIGHT[key] for key in "3102"}
    journal = journal_of(tmp_path / "a.jsonl", apps, shuffled)
    before = journal.read_text()
    assert sharegen("convert", journal, "--format", "sharegen", "-o", "b.jsonl").code == 0
    keys = [(row["problem_id"], row["sample"]) for row in lines(Path("b.jsonl"))]
    assert keys == [(str(n), i) for n in range(4) for i in range(3)]
    assert sorted(Path("b.jsonl").read_text()) == sorted(before)
    assert sharegen("score", "b.jsonl", "--execute").code == 0
    message = error_of(sharegen, "convert", journal, "--format", "sharegen", "-o", journal)
    assert "is the journal itself" in message and journal.read_text() == before


def test_a_conversion_is_written_over_by_the_next_one_and_a_journal_never(
    sharegen: Command, apps: Path, tmp_path: Path
) -> None:
    journal = journal_of(tmp_path / "a.jsonl", apps, RIGHT)
    to_b = ("convert", journal, "--format", "sharegen", "-o", "b.jsonl")
    twin = journal_of(tmp_path / "b.jsonl", apps, {"0": ["print(7)"] * 40})  # the same job's
    before = twin.read_bytes(), run_file_path(twin).read_bytes()
    assert "is a journal" in error_of(sharegen, *to_b)
    run_file_path(twin).rename("away")
    assert "is a journal" in error_of(sharegen, *to_b)
    assert (twin.read_bytes(), Path("away").read_bytes()) == before
    twin.unlink()
    assert sharegen(*to_b).code == 0 and sharegen(*to_b).code == 0
    assert "is a journal" in error_of(sharegen, *to_b[:3], "human-eval", *to_b[4:])
    other = journal_of(tmp_path / "c.jsonl", apps, {"1": ["print(2)"]})
    assert "is a journal" in error_of(sharegen, "convert", other, *to_b[2:])
    assert len(lines(twin)) == 12


def test_no_output_takes_the_place_of_a_run_file(
    sharegen: Command, apps: Path, tmp_path: Path
) -> None:
    journal = journal_of(tmp_path / "a.jsonl", apps, RIGHT)
    before = run_file_path(journal).read_bytes()
    for kind in ("bigcode", "human-eval", "monkeys", "sharegen"):
        message = error_of(sharegen, "convert", journal, "--format", kind, "-o", "a.run.json")
        assert "run file" in message
    message = error_of(sharegen, "convert", journal, "--format", "sharegen", "-o", "a")
    assert "a.run.json is that of a journal" in message
    assert run_file_path(journal).read_bytes() == before
    assert sharegen("convert", journal, "--format", "monkeys", "-o", "a").code == 0


def test_scores_take_no_journal_s_place(sharegen: Command, apps: Path, tmp_path: Path) -> None:
    journal = journal_of(tmp_path / "a.jsonl", apps, RIGHT)
    other = journal_of(tmp_path / "a.jsonl.scores.jsonl", apps, RIGHT)
    before = other.read_bytes()
    message = error_of(sharegen, "score", journal, "--execute", "--overwrite")
    assert "a.jsonl.scores.jsonl is a journal" in message and other.read_bytes() == before


def test_a_conversion_that_was_sampled_into_is_a_journal(
    sharegen: Command, model: Path, apps: Path
) -> None:
    command = ["code-sample", apps, "--model", model, "--few-shot", 0, *SMALL]
    assert sharegen(*command, "-o", "a.jsonl").code == 0
    to_b = ("convert", "a.jsonl", "--format", "sharegen", "-o", "b.jsonl")
    assert sharegen(*to_b).code == 0
    assert sharegen(*command, "-n", 3, "-o", "b.jsonl").code == 0
    assert "is a journal" in error_of(sharegen, *to_b)
    assert len(lines(Path("b.jsonl"))) == 12


@pytest.mark.turn(4)
def test_each_file_is_scored_once_and_no_scores_are(
    sharegen: Command, apps: Path, tmp_path: Path
) -> None:
    journal = journal_of(tmp_path / "a.jsonl", apps, RIGHT)
    assert sharegen("score", journal, "--execute").code == 0
    ran = sharegen("score", journal, journal, *sorted(tmp_path.glob("a.*jsonl")))
    assert ran.code == 0 and ran.out.count("a.jsonl") == 1, ran.err
    assert not list(tmp_path.glob("*.scores.jsonl.scores.jsonl"))
