"""Rows of programs that cannot be judged: each is unscorable, by name, and costs no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, write_jsonl
from tests.cli.test_code_commands import APPS, HUMANEVAL
from tests.results.sandboxes import isolation

MBPP = {
    "task_id": 1,
    "text": "Write a function to add two numbers.",
    "code": "def add(a, b):\n    return a + b\n",
    "test_list": ["assert add(1, 2) == 3"],
}


@pytest.fixture(autouse=True)
def _isolated() -> None:
    isolation()


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def call(arguments: str, result: str) -> dict[str, str]:
    return {"input_output": f'{{"fn_name": "f", "inputs": [{arguments}], "outputs": [{result}]}}'}


SCRIPT = "print(int(input()) + 0)"
ODD_APPS = [
    call(nested(300), "1"),
    call(nested(900), "1"),
    call("[1]", nested(900)),
    call('[{"' + "1" * 5_000 + '": 1}]', "1"),
    call("[1]", "1e400"),
    {"input_output": f'{{"inputs": [{nested(600)}], "outputs": ["1"]}}'},
    {"input_output": '{"inputs": ["1"], "outputs": ["1"], "fn_name": ["f"]}'},
    {"input_output": {"inputs": {}, "outputs": []}},
    {"input_output": ["1"]},
    {"input_output": 7},
    {"input_output": "\ud800"},
]


def score(
    sharegen: Command, rows: list[dict[str, Any]], program: str, schema: str, key: str
) -> tuple[str, dict[str, str]]:
    """What the command says, and the result of the program by row."""
    dataset = write_jsonl(Path("rows.jsonl"), [row | {key: f"p{i}"} for i, row in enumerate(rows)])
    samples = [{"task_id": f"p{i}", "completion": program} for i in range(len(rows))]
    write_jsonl(Path("samples.jsonl"), samples)
    arguments = ("--dataset", dataset, "--schema", schema, "--execute", "--timeout", 2)
    ran = sharegen("score", "samples.jsonl", *arguments)
    assert ran.code == 0 and "Traceback" not in ran.err, ran.err
    lines = Path(".sharegen/samples.jsonl.scores.jsonl").read_text().splitlines()
    return ran.err, {fields["problem_id"]: fields["result"] for fields in map(json.loads, lines)}


def check(said: str, results: dict[str, str], odd: range) -> None:
    """The odd rows are unscorable and named, all others passed."""
    unscorable = {f"p{number}" for number in odd}
    assert {name for name, result in results.items() if result != "passed"} == unscorable
    assert {result for name, result in results.items() if name in unscorable} == {"unscorable"}
    for name in unscorable:
        assert f"sharegen: problem {name}: 1 unscorable: its " in said


@pytest.mark.turn(4)
def test_apps(sharegen: Command) -> None:
    rows = [APPS[0], *(APPS[0] | odd for odd in ODD_APPS), APPS[0]]
    check(*score(sharegen, rows, SCRIPT, "apps", "problem_id"), range(1, len(ODD_APPS) + 1))


@pytest.mark.turn(4)
def test_humaneval(sharegen: Command) -> None:
    good = HUMANEVAL[0]
    odd = [
        good | {"prompt": good["prompt"] + "\ud800"},
        good | {"test": good["test"] + "# \ud800"},
        good | {"entry_point": "add)("},
        good | {"test": None},
        good | {"test": "x = " + "-" * 50_000 + "1\n" + good["test"]},
    ]
    said, results = score(
        sharegen, [good, *odd, good], good["canonical_solution"], "humaneval", "task_id"
    )
    check(said.replace(": it has", ": its"), results, range(1, len(odd) + 1))


@pytest.mark.turn(4)
def test_mbpp(sharegen: Command) -> None:
    odd = [
        MBPP | {"test_list": ["assert add('\ud800', '') == ''"]},
        MBPP | {"test_list": ["assert add(" + "-" * 50_000 + "1, 0) == 1"]},
        MBPP | {"test_list": ["assert add(1, 2) == a" + ".b" * 20_000]},
        MBPP | {"test_list": [7]},
        MBPP | {"test_setup_code": "a\0b"},
    ]
    fine = [
        MBPP | {"code": "x = '\ud800'"},
        MBPP | {"code": "-" * 50_000 + "1"},
        MBPP | {"code": "a" + ".b" * 20_000},
    ]
    rows = [MBPP, *odd, *fine, MBPP]
    check(*score(sharegen, rows, MBPP["code"], "mbpp", "task_id"), range(1, len(odd) + 1))


@pytest.mark.parametrize("level", [["easy"], {"a": 1}, "[/x]", "\x1b[31m", 10**400, 1.5])
@pytest.mark.turn(2)
@pytest.mark.slow
def test_difficulties_of_any_kind(sharegen: Command, level: Any) -> None:
    rows = [APPS[0] | {"difficulty": each} for each in (level, "interview")]
    _, results = score(sharegen, rows, SCRIPT, "apps", "problem_id")
    assert set(results.values()) == {"passed"}
    ran = sharegen("score", "samples.jsonl", "--dataset", "rows.jsonl", "--timeout", 2)
    assert ran.code == 0 and "interview" in ran.out and "\x1b" not in ran.out
