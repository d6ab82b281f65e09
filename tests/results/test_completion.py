"""The program in a chat's answer."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharegen.results.completion import completion_of, last_fenced_block


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("no fence\n", "no fence\n"),
        ("So:\n```python\nx = 1\n```\n", "x = 1\n"),
        ("```\nx = 1\n```\nor\n```py\ny = 2\n```\nbye", "y = 2\n"),
        ("```python\nx = 1\n```\nthen\n```python\ny =", "x = 1\n"),
        ("text\n```python\ny = 2\n", "y = 2\n"),
        ("- item\n  ```python\n  x\n  ```", "  x\n"),
        ("a ``` b ``` c", "a ``` b ``` c"),
        ("```python\n```", ""),
        ("```python\r\nx = 1\r\n```", "x = 1\r\n"),
        ("```python\ns = '```'\n```", "s = '```'\n"),
    ],
)
def test_last_fenced_block(text: str, program: str) -> None:
    assert last_fenced_block(text.replace("\r", "")) == program.replace("\r", "")


@pytest.mark.parametrize(
    "text",
    ["```\n" * 250_000, "```python\n" * 100_000, "``` " * 250_000, " " * 10**6, "\n" * 10**6],
)
def test_a_long_answer_takes_a_moment(text: str) -> None:
    started = time.perf_counter()
    last_fenced_block(text + "```python\nx = 1\n" * 2)
    assert time.perf_counter() - started < 2  # 68 s for a sixth of it, looking back at every fence


FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
OPENED = re.compile(r"^[ \t]*```[^\n`]*\n", re.MULTILINE)
LINES = st.lists(st.sampled_from(["```", "```py", " ```\t", "a", "", "```a`b", "`"]))


@given(LINES.map("\n".join) | LINES.map("".join))
def test_the_block_is_the_one_that_an_expression_finds(text: str) -> None:
    blocks = FENCED.findall(text)
    opened = list(OPENED.finditer(text))
    rest = text[opened[-1].end() :] if opened else text
    assert last_fenced_block(text) == (blocks[-1] if blocks else rest)


STUB = 'def f(x):\n    """Doc."""\n'


def test_raw_completions_are_left_alone() -> None:
    assert (
        completion_of("    return `1`\n```\n", is_chat=False, stub=STUB) == "    return `1`\n```\n"
    )


def test_a_whole_function_replaces_the_stub_and_a_body_continues_it() -> None:
    whole = completion_of("```python\ndef f(x):\n    return 2\n```", is_chat=True, stub=STUB)
    body = completion_of("```python\n    return 2\n```", is_chat=True, stub=STUB)
    for completion in (whole, body):
        names: dict = {}
        exec(compile(STUB + completion, "program", "exec"), names)
        assert names["f"](1) == 2
    assert completion_of("```\ndef f(x): pass\n```", is_chat=True) == "def f(x): pass\n"
