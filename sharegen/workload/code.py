"""The schemas of program problems: rows -> template fields, and -> tests.

APPS, HumanEval and MBPP are read here, LiveCodeBench in a file of its own.

The columns of a row decide which schema it has. Fields are added that the recipe's templates need
besides these columns; tests are read later, when a program is scored, since APPS has gigabytes of
them.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sharegen.common import json_values
from sharegen.common.json_values import JsonError, JsonLimitError
from sharegen.common.names import named, nearest
from sharegen.common.program_tests import (
    CallTests,
    CheckTests,
    NoTests,
    ProgramProblem,
    ScriptTests,
)
from sharegen.common.python_source import parsed
from sharegen.errors import DataError, UsageError
from sharegen.workload import live_code_bench
from sharegen.workload.dataset import DatasetRows
from sharegen.workload.template import half_character

Row = Mapping[str, Any]

APPS_PRELUDE = """\
import bisect, collections, fractions, functools, heapq, itertools, math, operator, random, re
import string, sys, time
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from functools import lru_cache, reduce
from heapq import *
from itertools import accumulate, combinations, permutations, product
from math import ceil, cos, exp, fabs, floor, gcd, log, log2, sin, sqrt, tan
from typing import *
"""
"""What the sites that APPS was collected from have imported already. Source: the names that the
dataset's own test runner imports (hendrycks/apps, eval/testing_util.py); numpy is left out."""


@dataclass(frozen=True)
class Schema:
    """One dataset's columns and how to read them.

    columns: which together no other schema has; tests: those of them that the tests are in; setup:
        columns that tests may need besides.
    fields: a row with what the templates need; raises DataError for a row that cannot be asked.
    problem: how to judge its programs.
    """

    name: str
    columns: frozenset[str]
    tests: frozenset[str]
    fields: Callable[[Row], dict[str, Any]]
    problem: Callable[[Row], ProgramProblem]
    setup: frozenset[str] = frozenset()

    def tests_of(self, row: Row) -> list[Any]:
        """All of a row that programs are judged by, as it stands there."""
        return [row.get(column) for column in sorted(self.tests | self.setup)]


def adapter(name: str) -> Callable[[Row], dict[str, Any]]:
    """What turns the rows of a schema into template fields. Raises UsageError."""
    return schema_named(name).fields


def schema_named(name: str) -> Schema:
    """A schema whatever the case of its name. Raises UsageError for one that is no schema's."""
    by_name = {schema.name: schema for schema in SCHEMAS}
    known = named(name, by_name)
    if known is None:
        near = nearest(name, list(by_name))
        hint = f": did you mean {near!r}?" if near else ""
        raise UsageError(f"unknown schema {name!r}: it is one of {', '.join(by_name)}{hint}")
    return by_name[known]


_TACO = (
    "are like TACO's, which has several right outputs for many of its inputs: --schema apps reads "
    "them as APPS's all the same"
)
_LEETCODE = (
    "are like LeetCodeDataset's, whose entry_point is an expression: write the name `Solution` "
    "instead, begin `check` with `candidate = candidate().METHOD`, and give --schema humaneval"
)
_OTHERS = (
    (frozenset({"question", "input_output", "raw_tags"}), _TACO),
    (frozenset({"question", "input_output", "skill_types"}), _TACO),
    (frozenset({"prompt", "entry_point", "test", "problem_description"}), _LEETCODE),
)
"""Columns of datasets that are like one that we know and are none, with what can be done."""


def schema_of(row: Row, where: str) -> Schema:
    """The schema that a row is in. Raises DataError that names its columns."""
    for columns, hint in _OTHERS:
        if columns <= row.keys():
            raise DataError(f"{where}: its columns {hint}")
    schema = _fitting(row)
    if schema is None:
        raise DataError(
            f"{where}: no known schema has the columns {', '.join(row)}: name it with --schema "
            f"({', '.join(schema.name for schema in SCHEMAS)})"
        )
    return schema


def schema_of_rows(rows: DatasetRows) -> Schema:
    """The schema of the first row that is in any. Raises DataError as `schema_of` does."""
    first = next((row for row in rows.rows if _fitting(row.values)), rows.first)
    return schema_of(first.values, first.where)


def _fitting(row: Row) -> Schema | None:
    return next((schema for schema in SCHEMAS if schema.columns <= row.keys()), None)


def _apps_fields(row: Row) -> dict[str, Any]:
    _require(row, "question")
    solution = min(_apps_solutions(row), key=len, default=None)
    starter_code = _text(row.get("starter_code"))
    return {
        **row,
        "starter_code": starter_code,
        "has_starter_code": bool(starter_code.strip()),
        "io_format": "Call-Based" if _apps_function(row) else "Standard Input",
        "has_solution": solution is not None,
        "answer": solution,
    }


def _apps_solutions(row: Row) -> list[str]:
    """The accepted solutions; none where the column is empty or no JSON."""
    found = row.get("solutions")
    try:
        found = json_values.parse(found) if isinstance(found, str) else found
    except JsonError:
        return []
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _apps_function(row: Row) -> str | None:
    """The name of the function to write; None for a script."""
    tests = row.get("input_output")
    if isinstance(tests, str):
        if '"fn_name"' not in tests:  # most are long, and this is all that is asked of them here
            return None
        try:
            tests = json_values.parse(tests, parse_int=str)  # whatever the length of its numbers
        except JsonError:
            return None
    name = tests.get("fn_name") if isinstance(tests, dict) else None
    return name if isinstance(name, str) and name else None


def _apps_problem(row: Row) -> ProgramProblem:
    difficulty = row.get("difficulty")
    level = str(difficulty) if difficulty and isinstance(difficulty, str | int) else None
    return ProgramProblem(_apps_tests(row), "", APPS_PRELUDE, level)


def _apps_tests(row: Row) -> ScriptTests | CallTests | NoTests:
    tests = row.get("input_output")  # JSON, or the object itself
    if tests is None or (isinstance(tests, str) and not tests.strip()):
        return NoTests("its input_output is empty")
    try:
        tests = json_values.parse(tests, parse_float=_finite) if isinstance(tests, str) else tests
    except JsonLimitError as error:
        return NoTests(f"its input_output cannot be used: {error}")
    except JsonError:
        return NoTests("its input_output is not JSON")
    if not isinstance(tests, dict):
        return NoTests("its input_output is not a JSON object")
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
        return NoTests("its input_output has no tests")
    if len(inputs) != len(outputs):
        return NoTests(f"its input_output has {len(inputs)} inputs and {len(outputs)} outputs")
    function = tests.get("fn_name")
    if not function:
        return ScriptTests([_lines(text) for text in inputs], [_lines(text) for text in outputs])
    if not isinstance(function, str) or not function.isidentifier():
        return NoTests("its fn_name is not a name")
    if not all(isinstance(arguments, list) for arguments in inputs):
        return NoTests("its input_output has arguments that are not a list")
    try:
        arguments = [_with_int_keys(each) for each in inputs]
    except ValueError:  # Python's limit on the digits of an int
        return NoTests("its input_output has a key with too many digits")
    return CallTests(function, arguments, outputs)


def _finite(text: str) -> float:
    """A number that a float can hold: infinity would be right for every larger one."""
    number = float(text)
    if math.isinf(number):
        raise JsonLimitError("a number is larger than any float")
    return number


def _lines(value: Any) -> str:
    """Some rows hold a text as the list of its lines."""
    if isinstance(value, list):
        return "\n".join(_lines(item) for item in value)
    return value if isinstance(value, str) else str(value)


def _with_int_keys(arguments: list[Any]) -> list[Any]:
    """Arguments as they were before JSON made strings of a dict's int keys."""

    def restore(value: Any) -> Any:
        if isinstance(value, dict) and all(_is_int(key) for key in value):
            return {int(key): item for key, item in value.items()}
        return value

    return [restore(value) for value in arguments]


def _is_int(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()


def _humaneval_fields(row: Row) -> dict[str, Any]:
    _require(row, "prompt")
    return {**row, "answer": row.get("canonical_solution")}


def _humaneval_problem(row: Row) -> ProgramProblem:
    for column in ("prompt", "test", "entry_point"):
        text = row.get(column)
        if not isinstance(text, str):
            return ProgramProblem(NoTests(f"it has no {column!r}"), _text(row.get("prompt")))
        if half_character(text) is not None:
            return ProgramProblem(NoTests(f"its {column!r} holds half of a character"))
    prompt, name = row["prompt"], row["entry_point"]
    if not name.isidentifier():
        return ProgramProblem(NoTests("its 'entry_point' is not a name"), prompt)
    # The prompt brings the imports and helpers that a check uses besides the function itself.
    check = f"{row['test']}\ncheck({name})\n"
    return ProgramProblem(CheckTests([check], [name], _closed(prompt)), prompt)


def _closed(stub: str) -> str:
    """A function's beginning as whole code: a body is added where there is not even a docstring."""
    return stub if parsed(stub) is not None else stub.rstrip() + "\n    pass\n"


def _mbpp_fields(row: Row) -> dict[str, Any]:
    question = _text(row.get("text")) or _text(row.get("prompt"))
    if not question:
        raise DataError("the field 'text' is missing")
    tests = _texts(row.get("test_list"))
    if not tests:
        raise DataError("the field 'test_list' is missing")
    code = row.get("code")
    answer = code.replace("\r\n", "\n").strip("\n") if isinstance(code, str) else None
    return {**row, "question": question, "tests": "\n".join(tests), "answer": answer}


def _mbpp_problem(row: Row) -> ProgramProblem:
    checks = _texts(row.get("test_list"))
    if not checks:
        return ProgramProblem(NoTests("its test_list is empty or holds what is not text"))
    setup = "\n".join([*_texts(row.get("test_imports")), _text(row.get("test_setup_code"))])
    tests, own = parsed("\n".join(checks)), parsed(setup)
    if tests is None or own is None:
        return ProgramProblem(NoTests("its tests are not Python"))
    # a task may ask for a function of a builtin's name, which its own solution then defines
    solution = parsed(_text(row.get("code")))
    others = set(dir(builtins)) - (_defined(solution) if solution is not None else set())
    functions = sorted((_called(tests) | _called(own)) - _defined(own) - others)
    if not functions:
        return ProgramProblem(NoTests("its tests call no function of the program"))
    return ProgramProblem(CheckTests(checks, functions, setup))


def _called(tree: ast.Module) -> set[str]:
    """Names that are called as functions and not bound in the code itself."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {node.id for node in calls if isinstance(node, ast.Name)} - _defined(tree)


def _defined(tree: ast.Module) -> set[str]:
    """Names that the code imports, defines or assigns."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _text(value: Any) -> str:
    """The text of a column; nothing for what is none."""
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> list[str]:
    """The texts of a column that holds a list of them; nothing for what is none."""
    is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value if is_list else []


def _require(row: Row, column: str) -> None:
    if not isinstance(row.get(column), str):
        raise DataError(f"the field {column!r} is missing")


def _live_fields(row: Row) -> dict[str, Any]:
    _require(row, "question_content")
    return live_code_bench.fields(row)


SCHEMAS = (
    Schema(
        "apps",
        columns=frozenset({"question", "input_output"}),
        tests=frozenset({"input_output"}),
        fields=_apps_fields,
        problem=_apps_problem,
    ),
    Schema(
        "humaneval",
        columns=frozenset({"prompt", "entry_point", "test"}),
        tests=frozenset({"prompt", "entry_point", "test"}),
        fields=_humaneval_fields,
        problem=_humaneval_problem,
    ),
    Schema(
        "mbpp",
        columns=frozenset({"test_list", "code"}),
        tests=frozenset({"test_list"}),
        fields=_mbpp_fields,
        problem=_mbpp_problem,
        setup=frozenset({"test_imports", "test_setup_code"}),
    ),
    Schema(
        "livecodebench",
        columns=frozenset({"question_content", "public_test_cases"}),
        tests=frozenset({"public_test_cases"}),
        fields=_live_fields,
        problem=live_code_bench.problem,
        setup=frozenset({"private_test_cases", "metadata"}),
    ),
)
