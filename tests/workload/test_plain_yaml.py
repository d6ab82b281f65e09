from __future__ import annotations

import math

import pytest
import yaml

from sharegen.workload import plain_yaml
from sharegen.workload.recipe import RECIPES


def _laughs(line: str) -> str:
    """Ten names a level, each for ten of the level above: a billion values in ten lines."""
    levels = (line.format(name=chr(98 + i), above=chr(97 + i)) for i in range(9))
    return "a: &a {k: v}\n" + "".join(levels)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_read_as_any_yaml_does(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]
    assert plain_yaml.load(text) == yaml.safe_load(text)


def test_aliases_and_merges_are_yaml_s() -> None:
    text = "a: &a {x: 1, y: [1.5, null]}\nb: *a\nc: {<<: *a, x: 2}\n"
    assert plain_yaml.load(text) == yaml.safe_load(text)


def test_a_date_is_text_as_it_is_in_data() -> None:
    assert plain_yaml.load("a: 2024-01-31\nb: 2024-13-45") == {"a": "2024-01-31", "b": "2024-13-45"}


def test_numbers() -> None:
    assert plain_yaml.load(f"[{2**64}, 0x1f, 1e3, 1.0e+3]") == [2**64, 31, "1e3", 1000.0]
    assert math.isinf(plain_yaml.load(".inf"))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (_laughs("{name}: &{name} [" + ", ".join(["*{above}"] * 10) + "]\n"), 5, "10,000 values"),
        (_laughs("{name}: &{name} {{<<: [" + ",".join(["*{above}"] * 10) + "]}}\n"), 5, "values"),
        ("a: &a " + "x" * 200_000 + "\nb: [*a, *a, *a,\n*a, *a]", 3, "1,048,576 characters"),
        ("a: 1\nb: " + "[" * 100_000, 2, "32 levels"),
        ("".join(" " * depth + "a:\n" for depth in range(500)), 32, "32 levels"),
        ("a: &a " + "[" * 28 + "]" * 28 + "\nb: " + "[" * 10 + "*a" + "]" * 10, 2, "32 levels"),
        ("a: &a [1, *a]", 1, "stands in what it stands for"),
        ("a: *b", 1, "undefined alias"),
        ("\na: " + "9" * 6000, 2, "a number of 6,000 digits"),
        ("\na: 0x" + "f" * 6000, 2, "a number of 6,002 digits"),
        ("\na: " + "1:" * 100_000 + "1", 2, "a number of 200,001 digits"),
        ("a: 0b_", 1, "'0b_' is no int"),
        ("a: !!bool maybe", 1, "'maybe' is no bool"),
        ("a: !!timestamp 2024-13-45", 1, "timestamp"),
        ("a: !!binary x", 1, "binary"),
        ("a: !!python/object/apply:os.getcwd []", 1, "os.getcwd"),
        ('a: 1\nb: "\\ud83d"', 2, "half of a character"),
        ('a: 1\nb: "\\Uffffffff"', 2, "too many digits"),
        ("%YAML " + "9" * 6000 + ".1\n---\na", 1, "too many digits"),
        ("a: 1\nb: \x01", 2, r"U\+0001"),
        ("? [a]\n: b", 1, "unhashable"),
        ("a: 1\n---\nb: 2", 2, "another document"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_refused_is_told_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(yaml.MarkedYAMLError) as error:
        plain_yaml.load(text)
    assert error.value.problem_mark is not None
    assert error.value.problem_mark.line + 1 == line
    assert error.value.problem is not None and error.match(problem)
