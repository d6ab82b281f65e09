"""LiveCodeBench's public schema: what its prompt says of a row, and its tests, encoded ones too.

Tests are lists of {"input", "output", "testtype"} as JSON texts. The private ones are such a text,
or that text pickled, compressed and in base64: what was pickled is a text and nothing else, and so
it is read without unpickling anything. Source: the dataset card of
livecodebench/code_generation_lite; lcb_runner/benchmarks and lcb_runner/prompts of its repository.
"""

from __future__ import annotations

import base64
import binascii
import pickletools
import zlib
from collections.abc import Mapping
from typing import Any

from sharegen.common import json_values
from sharegen.common.json_values import JsonError
from sharegen.common.program_tests import CallTests, NoTests, ProgramProblem, ScriptTests

Row = Mapping[str, Any]

_LARGEST = 1 << 29
"""Bytes of one problem's tests."""

_STARS = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random",
    "statistics", "itertools", "functools", "operator", "io", "sys", "json", "typing",
)  # fmt: skip
PRELUDE = (
    "".join(f"from {module} import *\n" for module in _STARS)
    + "from builtins import *\nimport "
    + ", ".join(module for module in _STARS if module != "typing")
    + "\n"
)
"""What programs may use without importing it: all names of these modules, Python's own before them.
Source: the names that the dataset's own runner imports (lcb_runner/evaluation/testing_util.py)."""

_WITH_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your "
    "code within delimiters."
)
_WITHOUT = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly "
    "test on the sample inputs). Enclose your code within delimiters as follows. Ensure that when "
    "the python program runs, it reads the inputs, runs the algorithm and writes output to STDOUT."
)
_TEXTS = ("BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE", "UNICODE")
_AROUND = ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP")


class _Unreadable(ValueError):
    """Tests that cannot be read, and why."""


def fields(row: Row) -> dict[str, Any]:
    """A row with what the templates need besides its columns."""
    starter = row.get("starter_code") or ""
    return {
        **row,
        "question": row["question_content"],
        "format": _WITH_STARTER if starter else _WITHOUT,
        "begun": starter or "# YOUR CODE HERE",
    }


def problem(row: Row) -> ProgramProblem:
    """How to judge the programs for a row."""
    difficulty = row.get("difficulty")
    level = difficulty if isinstance(difficulty, str) else None
    try:
        return ProgramProblem(_tests(row), "", PRELUDE, level)
    except (_Unreadable, JsonError) as error:
        return ProgramProblem(NoTests(f"its tests cannot be used: {error}"), difficulty=level)


def _tests(row: Row) -> ScriptTests | CallTests | NoTests:
    tests = _listed(row.get("public_test_cases")) + _private(row.get("private_test_cases"))
    if not tests:
        return NoTests("it has no tests")
    function = _function(row.get("metadata"))
    if function is None:
        return ScriptTests([test["input"] for test in tests], [test["output"] for test in tests])
    arguments = [_values(test["input"]) for test in tests]
    results = [json_values.parse(test["output"]) for test in tests]
    return CallTests(function, arguments, results, is_exact=True)


def _listed(tests: Any) -> list[dict[str, str]]:
    """Tests as a list, whether it is one or is written as JSON."""
    found = json_values.parse(tests) if isinstance(tests, str) else tests
    if not isinstance(found, list):
        raise _Unreadable("they are not a list")
    for test in found:
        is_whole = isinstance(test, dict) and all(
            isinstance(test.get(name), str) for name in ("input", "output")
        )
        if not is_whole:
            raise _Unreadable("one has no text 'input' or 'output'")
    return found


def _private(tests: Any) -> list[dict[str, str]]:
    if tests is None or tests == "":
        return []
    if isinstance(tests, str) and not tests.lstrip().startswith("["):
        tests = _decoded(tests)
    return _listed(tests)


def _decoded(encoded: str) -> str:
    """The text that was pickled, compressed and written in base64."""
    try:
        data = base64.b64decode(encoded, validate=True)
        unpacking = zlib.decompressobj()
        pickled = unpacking.decompress(data, _LARGEST)
    except (binascii.Error, zlib.error, ValueError):
        raise _Unreadable("the private ones are neither JSON nor what was compressed") from None
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise _Unreadable(f"the private ones are cut, or more than {_LARGEST >> 20} MiB")
    return _pickled_text(pickled)


def _pickled_text(pickled: bytes) -> str:
    """The text in a pickle that holds one and nothing else: nothing is unpickled."""
    texts = []
    try:
        for operation, value, _ in pickletools.genops(pickled):
            if operation.name in _TEXTS:
                texts.append(value)
            elif operation.name not in _AROUND:
                raise _Unreadable("the private ones are a pickle of more than a text")
    except (ValueError, IndexError, OverflowError) as error:
        if isinstance(error, _Unreadable):
            raise
        raise _Unreadable("the private ones are not a pickle") from None
    if len(texts) != 1:
        raise _Unreadable("the private ones are a pickle of more than a text")
    return str(texts[0])


def _function(metadata: Any) -> str | None:
    """The name of the function to write; None for a script."""
    found = json_values.parse(metadata) if isinstance(metadata, str) and metadata else metadata
    name = found.get("func_name") if isinstance(found, dict) else None
    if not name:
        return None
    if not isinstance(name, str) or not name.isidentifier():
        raise _Unreadable("the function to call has no name")
    return name


def _values(lines: str) -> list[Any]:
    """The arguments of a call, a line of JSON each."""
    return [json_values.parse(line) for line in lines.split("\n") if line.strip()]
