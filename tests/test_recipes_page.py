"""The two recipes of docs/guides/recipes.md do what the page says that they do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharegen.common.mappings import merge
from sharegen.job.dry_run import preview_prompt
from sharegen.job.gold_reading import gold_answers
from sharegen.job.reordering import load_asked
from sharegen.results.answers.reader import AnswerReader
from sharegen.workload.configuration import Configuration, resolve
from sharegen.workload.recipe import Job
from sharegen.workload.validation import validate
from tests.keys import keys

PAGE = (Path(__file__).parents[1] / "docs" / "guides" / "recipes.md").read_text(encoding="utf-8")
FILES = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
OUTPUTS = re.findall(r"<!-- output: plan (.*?) -->\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files, as somebody has them who copied these."""
    for name, text in FILES:
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(recipe: str) -> Configuration:
    return resolve(recipe, flags={"model": "tinymath"})


def test_both_recipes_and_their_outputs_are_on_the_page() -> None:
    assert [name for name, _ in FILES if name.endswith("yaml")] == ["math.yaml", "choice.yaml"]
    assert len(OUTPUTS) == 3


@pytest.mark.parametrize(("command", "text"), OUTPUTS)
def test_a_prompt_is_the_one_that_the_page_shows(folder: Path, command: str, text: str) -> None:
    recipe, _, *problem = command.split()
    assert preview_prompt(configured(recipe), *problem).text + "\n" == text


@pytest.mark.parametrize(
    ("recipe", "golds"),
    [("./math.yaml", ["2", r"\frac{1}{2}"]), ("./choice.yaml", ["B", "C", "A"])],
)
def test_the_gold_answers_are_those_that_the_page_names(
    folder: Path, recipe: str, golds: list[str]
) -> None:
    job = configured(recipe)
    assert list(gold_answers(job).values()) == golds
    assert [problem.gold for problem in load_asked(job).problems] == golds


@pytest.mark.parametrize(
    ("recipe", "completion", "answer"),
    [
        ("./math.yaml", r" So $\boxed{3}$, no, $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        ("./choice.yaml", " B", "B"),
    ],
)
def test_answers_are_read(folder: Path, recipe: str, completion: str, answer: str) -> None:
    wanted = configured(recipe).answer
    assert wanted is not None
    found = AnswerReader(wanted.extract, tuple(wanted.patterns), wanted.match).read(completion)
    assert found is not None and found.answer == answer


def pieces() -> Iterator[dict[str, Any]]:
    """The pieces of recipes on the page: a block, cut where it says one key once more."""
    blocks = re.findall(r"(?<!-->\n)```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 12
    for block in blocks:
        lines: list[str] = []
        for line in [*block.splitlines(), ""]:
            key = line.partition(":")[0] if line[:1] not in (" ", "#", "") else None
            if not line or (key and any(each.startswith(f"{key}:") for each in lines)):
                yield yaml.safe_load("\n".join(lines)) or {}
                lines = []
            lines.append(line)


@cache
def jobs() -> list[dict[str, Any]]:
    """What the page's pieces and recipes say of a job, each preset by itself."""
    found = []
    recipes = [yaml.safe_load(text) for name, text in FILES if name.endswith("yaml")]
    for values in [*pieces(), *recipes]:
        gold = {"answer": {"gold": values.pop("gold")}} if "gold" in values else {}
        for preset in [{}, *values.pop("presets", {}).values()]:
            job = merge(merge(values, gold), preset)
            found.append({key: value for key, value in job.items() if key in Job.model_fields})
    return found


def test_every_piece_of_a_recipe_on_the_page_is_one() -> None:
    """On top of the least that a job is."""
    least = {"prompt": "{{ question }}", "answer": {"extract": "number"}}
    known = Job.model_fields.keys() | {"gold", "presets", "default", "description"}
    assert all(piece.keys() <= known for piece in pieces())
    for job in jobs():
        validate(Job, merge(least, job), "docs/guides/recipes.md")


@pytest.mark.parametrize("path", list(keys(Job)), ids=".".join)
def test_every_key_has_an_example_on_the_page(path: tuple[str, ...]) -> None:
    def says(values: Any, path: tuple[str, ...]) -> bool:
        if not path:
            return True
        return isinstance(values, dict) and path[0] in values and says(values[path[0]], path[1:])

    is_template = path == ("prompt", "text")  # which stands for the section, too
    assert any(says(job, path[:1] if is_template else path) for job in jobs())


@pytest.mark.parametrize(
    ("gold", "row", "answer"),
    [
        ({"field": "answer"}, {"answer": "9\\pi"}, "9\\pi"),
        (
            {"template": "{{ 'ABCDE'[choices.label.index(answerKey)] }}"},
            {"choices": {"text": ["four", "eight"], "label": ["1", "2"]}, "answerKey": "2"},
            "B",
        ),
        ({"template": "{{ 'yes' if answer else 'no' }}"}, {"answer": False}, "no"),
    ],
)
def test_gold_answers_of_rows_of_other_shapes(
    tmp_path: Path, gold: dict[str, str], row: dict[str, Any], answer: str
) -> None:
    (where,) = gold.values()
    assert where in PAGE
    extract = "boxed" if gold == {"field": "answer"} else "choice" if "ABCDE" in where else "text"
    recipe = {
        "dataset": {"source": "rows.jsonl"},
        "prompt": "x",
        "answer": {"extract": extract, "gold": gold},
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    job = configured(str(tmp_path / "mine.yaml"))
    assert list(gold_answers(job).values()) == [answer]
