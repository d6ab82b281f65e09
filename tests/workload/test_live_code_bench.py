"""LiveCodeBench's schema: prompts, tests, and encodings that are not what they say."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from sharegen.common.program_tests import CallTests, NoTests, ScriptTests
from sharegen.errors import DataError
from sharegen.workload.code import schema_of
from sharegen.workload.configuration import resolve
from sharegen.workload.problem import load_workload


def encoded(tests: Any, protocol: int = 4) -> str:
    """Private tests as the dataset has them."""
    packed = zlib.compress(pickle.dumps(json.dumps(tests), protocol))
    return base64.b64encode(packed).decode()


def case(given: str, wanted: str, kind: str = "stdin") -> dict[str, str]:
    return {"input": given, "output": wanted, "testtype": kind}


SCRIPT: dict[str, Any] = {
    "question_title": "Sum",
    "question_content": "Add two numbers.",
    "platform": "atcoder",
    "question_id": "abc1_a",
    "contest_id": "abc1",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": json.dumps([case("1 2\n", "3\n")]),
    "private_test_cases": encoded([case("5 6\n", "11\n")]),
    "metadata": "{}",
}
CALLED = SCRIPT | {
    "question_id": "2",
    "platform": "leetcode",
    "starter_code": "class Solution:\n    def add(self, xs: List[int], n: int) -> List:\n        ",
    "difficulty": "hard",
    "public_test_cases": json.dumps([case("[1, 2]\n3", "[4, 5]", "functional")]),
    "private_test_cases": encoded([case("[]\n0", "[]", "functional")]),
    "metadata": json.dumps({"func_name": "add"}),
}


def how_judged(row: dict[str, Any]) -> Any:
    schema = schema_of(row, "here")
    assert schema.name == "livecodebench"
    return schema.problem(row).tests


def test_tests_are_the_public_and_the_private_ones() -> None:
    assert how_judged(SCRIPT) == ScriptTests(["1 2\n", "5 6\n"], ["3\n", "11\n"])
    called = CallTests("add", [[[1, 2], 3], [[], 0]], [[4, 5], []], is_exact=True)
    assert how_judged(CALLED) == called
    assert schema_of(CALLED, "").problem(CALLED).difficulty == "hard"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        private = encoded([case("5 6\n", "11\n")], protocol)
        assert how_judged(SCRIPT | {"private_test_cases": private}) == how_judged(SCRIPT)
    plain = json.dumps([case("5 6\n", "11\n")])
    for private in (plain, json.loads(plain)):
        assert how_judged(SCRIPT | {"private_test_cases": private}) == how_judged(SCRIPT)
    for private in (None, "", "[]"):
        only = how_judged(SCRIPT | {"private_test_cases": private})
        assert only == ScriptTests(["1 2\n"], ["3\n"])
    held = SCRIPT | {"public_test_cases": json.loads(SCRIPT["public_test_cases"]), "metadata": {}}
    assert how_judged(held) == how_judged(SCRIPT)


class _Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize(
    ("private", "reason"),
    [
        (base64.b64encode(zlib.compress(pickle.dumps(_Harm()))).decode(), "more than a text"),
        (base64.b64encode(zlib.compress(pickle.dumps([1]))).decode(), "more than a text"),
        (base64.b64encode(zlib.compress(pickle.dumps(("[]", "[]")))).decode(), "more than a text"),
        (base64.b64encode(zlib.compress(b"no pickle")).decode(), "not a pickle"),
        (base64.b64encode(zlib.compress(b"")).decode(), "not a pickle"),
        (base64.b64encode(zlib.compress(pickle.dumps("no JSON"))).decode(), "Expecting value"),
        (base64.b64encode(zlib.compress(pickle.dumps("{}"))).decode(), "not a list"),
        (base64.b64encode(zlib.compress(pickle.dumps("[1]"))).decode(), "no text 'input'"),
        (base64.b64encode(zlib.compress(pickle.dumps("[]"))[:-8]).decode(), "cut"),
        (base64.b64encode(b"not compressed").decode(), "neither JSON"),
        ("no base64!", "neither JSON"),
        ("[1", "delimiter"),
        ("[" * 100_000, "nested too deeply"),
        (5, "not a list"),
    ],
)
def test_what_is_no_tests_is_unscorable(
    private: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is unpickled."""
    monkeypatch.chdir(tmp_path)
    tests = how_judged(SCRIPT | {"private_test_cases": private})
    assert isinstance(tests, NoTests) and reason in tests.reason
    assert not list(tmp_path.iterdir())


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharegen.workload.live_code_bench._LARGEST", 1000)
    tests = how_judged(SCRIPT | {"private_test_cases": encoded([case("x" * 2000, "")])})
    assert isinstance(tests, NoTests) and "more than" in tests.reason


@pytest.mark.parametrize("metadata", [{"func_name": 5}, {"func_name": "a b"}, "{", "[]"])
def test_odd_metadata(metadata: Any) -> None:
    tests = how_judged(CALLED | {"metadata": metadata})
    assert isinstance(tests, NoTests) or metadata == "[]"


def prompts(tmp_path: Path, rows: list[dict[str, Any]], **flags: Any) -> list[Any]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = resolve("code-sample", str(path), {"model": "none"} | flags)
    assert job.preset == "livecodebench"
    return load_workload(job).problems


def test_the_prompt_is_the_datasets_own(tmp_path: Path) -> None:
    script, called = prompts(tmp_path, [SCRIPT, CALLED])
    assert (script.id, called.id) == ("abc1_a", "2")
    assert str(script.prompt) == (
        "### Question:\nAdd two numbers.\n\n"
        "### Format: Read the inputs from stdin solve the problem and write the answer to stdout "
        "(do not directly test on the sample inputs). Enclose your code within delimiters as "
        "follows. Ensure that when the python program runs, it reads the inputs, runs the "
        "algorithm and writes output to STDOUT.\n```python\n# YOUR CODE HERE\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )
    assert str(called.prompt) == (
        "### Question:\nAdd two numbers.\n\n### Format: You will use the following starter code to "
        "write the solution to the problem and enclose your code within delimiters.\n```python\n"
        f"{CALLED['starter_code']}\n```\n\n### Answer: (use the provided format with backticks)\n\n"
    )
    hard = prompts(tmp_path, [SCRIPT, CALLED], dataset={"where": {"difficulty": "hard"}})
    assert [problem.id for problem in hard] == ["2"]


def test_a_row_without_a_question_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(SCRIPT | {"question_content": None}) + "\n")
    with pytest.raises(DataError, match="question_content"):
        load_workload(resolve("code-sample", str(path), {"model": "none"}))
