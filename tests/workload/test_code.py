"""The schemas of program problems: told apart, turned into prompts and into tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.common.program_tests import CallTests, CheckTests, NoTests, ScriptTests
from sharegen.errors import DataError, UsageError
from sharegen.workload.code import adapter, schema_named, schema_of
from sharegen.workload.configuration import resolve
from sharegen.workload.problem import load_workload

APPS: dict[str, Any] = {
    "problem_id": 7,
    "question": "Add two numbers.",
    "solutions": json.dumps(["a, b = map(int, input().split())\nprint(a + b)", "print(sum(1))"]),
    "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]}),
    "difficulty": "introductory",
    "url": "",
    "starter_code": "",
}
CALLED = APPS | {
    "problem_id": 8,
    "starter_code": "\nclass Solution:\n    def add(self, a, b):",
    "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}),
    "difficulty": "interview",
}
HUMANEVAL = {
    "task_id": "Test/0",
    "prompt": 'import math\n\ndef helper(x):\n    return x\n\ndef add(a, b):\n    """Add."""\n',
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == helper(3)\n",
}
MBPP = {
    "task_id": 11,
    "text": "Write a function to add two numbers.",
    "code": "def add(a, b):\r\n  return a + b\r\n",
    "test_list": ["assert add(1, 2) == 3", "assert math.isclose(add(0.1, 0.2), 0.3)"],
    "test_setup_code": "import math",
    "challenge_test_list": [],
}


@pytest.mark.parametrize(
    ("row", "name"), [(APPS, "apps"), (CALLED, "apps"), (HUMANEVAL, "humaneval"), (MBPP, "mbpp")]
)
def test_a_schema_is_told_by_its_columns(row: dict[str, Any], name: str) -> None:
    assert schema_of(row, "here").name == name


def test_unknown_columns_and_names_are_told() -> None:
    with pytest.raises(DataError, match=r"rows.jsonl, line 1.*columns question, answer.*--schema"):
        schema_of({"question": 1, "answer": 2}, "rows.jsonl, line 1")
    with pytest.raises(
        UsageError, match="unknown schema 'app': it is one of apps, humaneval, mbpp, livecodebench"
    ):
        adapter("app")


def prompts(tmp_path: Path, rows: list[dict[str, Any]], **flags: Any) -> list[str]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = {"model": "none", "few_shot": {"k": 0}} | flags
    workload = load_workload(resolve("code-sample", str(path), flags))
    return [str(problem.prompt) for problem in workload.problems]


def test_apps_prompts(tmp_path: Path) -> None:
    script, called = prompts(tmp_path, [APPS, CALLED])
    assert script == "\nQUESTION:\nAdd two numbers.\nUse Standard Input format\nANSWER:\n"
    assert called == (
        "\nQUESTION:\nAdd two numbers.\nclass Solution:\n    def add(self, a, b):"
        "\nUse Call-Based format\nANSWER:\n"
    )


def test_apps_few_shot_is_the_shortest_accepted_solution(tmp_path: Path) -> None:
    train = tmp_path / "train.jsonl"
    unsolved = APPS | {"problem_id": 1, "solutions": ""}
    train.write_text("".join(json.dumps(row) + "\n" for row in (unsolved, APPS, CALLED)))
    few_shot = {"k": 2, "file": str(train)}
    (prompt,) = prompts(tmp_path, [APPS | {"question": "Q"}], few_shot=few_shot)
    own = "\nQUESTION:\nQ\nUse Standard Input format\nANSWER:\n"
    assert prompt.endswith(own)
    shots = prompt.removesuffix(own)
    assert shots.count("\nANSWER:\nprint(sum(1))\n") == shots.count("\nQUESTION:\n") == 2


def test_apps_stops_and_its_filters(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (APPS, CALLED)))
    flags: dict[str, Any] = {"model": "none", "few_shot": {"k": 0}}
    job = resolve("code-sample", str(path), flags)
    assert job.sampling.stop == ["\nQUESTION", "\n---", "\nANSWER"] and job.preset == "apps"
    for where, ids in (
        ({"difficulty": "interview"}, ["8"]),
        ({"has_starter_code": False}, ["7"]),
        ({"difficulty": "introductory", "has_starter_code": False}, ["7"]),
    ):
        job = resolve("code-sample", str(path), flags | {"dataset": {"where": where}})
        assert [problem.id for problem in load_workload(job).problems] == ids


def test_the_hubs_ids_take_their_presets() -> None:
    for name, source in (
        ("apps", "codeparrot/apps"),
        ("humaneval", "openai/openai_humaneval"),
        ("mbpp", "google-research-datasets/mbpp"),
    ):
        for dataset in (name, source):
            job = resolve("code-sample", dataset, {"model": "none"})
            assert (job.dataset.source, job.dataset.rows) == (source, name)
    assert resolve("code-sample", "apps", {"model": "none"}).few_shot.k == 2
    mbpp = resolve("code-sample", "mbpp", {"model": "none"})
    assert (mbpp.few_shot.k, mbpp.few_shot.split) == (3, "prompt")


def test_humaneval_prompt_is_the_rows_own(tmp_path: Path) -> None:
    assert prompts(tmp_path, [HUMANEVAL]) == [HUMANEVAL["prompt"]]
    job = resolve("code-sample", str(tmp_path / "rows.jsonl"), {"model": "none"})
    for text in ("\ndef f(", "\nclass A", "\nif __name__ == ", "\nprint(1)", "\n# so"):
        assert any(stop in text for stop in job.sampling.stop)
    body = '    if x:\n        print(1)  # ok\n    def g(): pass\n    return "class"'
    assert not any(stop in body for stop in job.sampling.stop)


def test_mbpp_prompt_shows_task_and_tests(tmp_path: Path) -> None:
    train = tmp_path / "prompt.jsonl"
    rows = [MBPP | {"task_id": n, "text": f"Task {n}."} for n in range(1, 11)]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (prompt,) = prompts(tmp_path, [MBPP], few_shot={"k": 3, "file": str(train)})
    tasks = [n for n in range(1, 11) if f"here is your task: Task {n}. Your code" in prompt]
    assert tasks == [2, 3, 4]
    assert prompt.count("[BEGIN]\ndef add(a, b):\n  return a + b\n[DONE]\n") == 3
    assert prompt.endswith("\n\n" + "\n".join(MBPP["test_list"]) + "\n[BEGIN]\n")


def test_bad_rows_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(APPS) + "\n" + json.dumps(CALLED | {"question": None}) + "\n")
    flags = {"model": "none", "few_shot": {"k": 0}}
    workload = load_workload(resolve("code-sample", str(path), flags))
    assert len(workload.problems) == 1
    assert "line 2: the field 'question' is missing" in workload.bad_rows[0].error


def how_judged(row: dict[str, Any]) -> Any:
    return schema_of(row, "here").problem(row).tests


def test_apps_tests() -> None:
    assert how_judged(APPS) == ScriptTests(["1 2\n"], ["3\n"])
    assert how_judged(CALLED) == CallTests("add", [[1, 2]], [[3]])
    lines = {"inputs": [["1", "2"]], "outputs": [["3", "4"]]}
    assert how_judged(APPS | {"input_output": json.dumps(lines)}) == ScriptTests(["1\n2"], ["3\n4"])
    keyed = {"fn_name": "f", "inputs": [[{"1": 2}, {"a": 1}]], "outputs": [1]}
    assert how_judged(APPS | {"input_output": json.dumps(keyed)}).arguments == [[{1: 2}, {"a": 1}]]
    assert schema_named("apps").problem(APPS).difficulty == "introductory"


def test_apps_rows_may_hold_objects_instead_of_json(tmp_path: Path) -> None:
    for row in (APPS, CALLED):
        held = row | {name: json.loads(row[name]) for name in ("input_output", "solutions")}
        assert how_judged(held) == how_judged(row)
        assert adapter("apps")(held)["answer"] == adapter("apps")(row)["answer"]
        assert prompts(tmp_path, [held]) == prompts(tmp_path, [row])
    assert isinstance(how_judged(APPS | {"input_output": ["no object"]}), NoTests)


@pytest.mark.parametrize(
    ("columns", "name", "to_do"),
    [
        ({"raw_tags": "[]", "source": "codeforces"}, "TACO", "--schema apps"),
        ({"skill_types": "[]"}, "TACO", "--schema apps"),
    ],
)
def test_rows_like_those_of_apps_are_told_by_name(
    columns: dict[str, Any], name: str, to_do: str
) -> None:
    with pytest.raises(DataError, match=f"line 1.*{name}.*{to_do}"):
        schema_of(APPS | columns, "rows.jsonl, line 1")


def test_rows_of_leetcode_dataset_are_told_by_name(tmp_path: Path) -> None:
    row = HUMANEVAL | {"entry_point": "Solution().add", "problem_description": "Add."}
    with pytest.raises(DataError, match=r"LeetCodeDataset.*`Solution`.*--schema humaneval"):
        schema_of(row, "here")
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="LeetCodeDataset"):
        resolve("code-sample", str(path), {"model": "none", "few_shot": {"k": 0}})


HUGE = '{"inputs": [[1' + "0" * 5000 + ']], "outputs": [1], "fn_name": "f"}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (None, "empty"),
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "no tests"),
        ('{"inputs": [], "outputs": []}', "no tests"),
        ('{"inputs": ["1"], "outputs": []}', "1 inputs and 0 outputs"),
        ('{"inputs": [1], "outputs": [1], "fn_name": "f"}', "arguments that are not a list"),
        (HUGE, "too many digits"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_apps_rows_without_usable_tests_are_unscorable(text: str | None, reason: str) -> None:
    tests = how_judged(APPS | {"input_output": text})
    assert isinstance(tests, NoTests) and reason in tests.reason
    fields = adapter("apps")(APPS | {"input_output": text})  # and can be asked all the same
    assert fields["io_format"] == ("Call-Based" if text and "fn_name" in text else "Standard Input")


@pytest.mark.parametrize("solutions", ["", None, "no JSON", "{}", "[1]"])
def test_apps_rows_without_solutions_are_no_examples(solutions: str | None) -> None:
    fields = adapter("apps")(APPS | {"solutions": solutions})
    assert fields["has_solution"] is False and fields["answer"] is None


def test_humaneval_tests_know_the_prompts_helpers() -> None:
    problem = schema_named("humaneval").problem(HUMANEVAL)
    assert isinstance(problem.tests, CheckTests)
    assert problem.tests.functions == ["add"] and "def helper" in problem.tests.setup
    assert problem.program("    return a + b\n").endswith('"""Add."""\n    return a + b\n')
    bare = schema_named("humaneval").problem(HUMANEVAL | {"prompt": "def add(a, b):\n"})
    assert isinstance(bare.tests, CheckTests)
    compile(bare.tests.setup, "setup", "exec")
    missing = schema_named("humaneval").problem(HUMANEVAL | {"test": None})
    assert missing.tests == NoTests("it has no 'test'")


def test_mbpp_tests_call_the_programs_functions_only() -> None:
    assert how_judged(MBPP) == CheckTests(MBPP["test_list"], ["add"], "import math")
    several = ["assert set(rev(x) for x in sorted(mk(2))) == {1}", "from os import sep\nassert sep"]
    assert how_judged(MBPP | {"test_list": several}).functions == ["mk", "rev"]
    imported = MBPP | {"test_imports": ["from math import floor"], "test_list": ["floor(f(1))"]}
    assert how_judged(imported).functions == ["f"]
    builtin = MBPP | {"code": "def sum(x): return x", "test_list": ["assert sum(max(1, 2)) == 2"]}
    assert how_judged(builtin).functions == ["sum"]
    assert isinstance(how_judged(MBPP | {"test_list": []}), NoTests)
    assert isinstance(how_judged(MBPP | {"test_list": ["assert ("]}), NoTests)
    assert isinstance(how_judged(MBPP | {"test_list": ["assert 1"]}), NoTests)
