"""The two recipes of docs/guides/recipes.md do what the page says that they do."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_every_piece_of_a_recipe_on_the_page_is_one() -> None:
    """A block of keys, each line of alternatives by itself, on top of the least that a job is."""
    least = {"prompt": "{{ question }}", "answer": {"extract": "number"}}
    blocks = re.findall(r"(?<!-->\n)```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 12
    for block in blocks:
        lines = block.splitlines()
        keys = [line.partition(":")[0] for line in lines if line[:1] not in (" ", "#", "")]
        several = len(keys) > len(set(keys))
        for text in lines if several else [block]:
            values = yaml.safe_load(text) or {}
            if "gold" in values:
                values = {"answer": {"gold": values["gold"]}}
            for preset in [{}, *values.pop("presets", {}).values()]:
                merged = merge(merge(least, values), preset)
                merged.pop("default", None)
                validate(Job, merged, "docs/guides/recipes.md")


def test_every_key_is_on_the_page() -> None:
    for name in Job.model_fields:
        assert re.search(rf"\b{name}\b", PAGE), name
    for section in ("dataset", "few_shot", "chat", "answer", "keep"):
        kinds = [Job.model_fields[section].annotation]
        kinds += getattr(kinds[0], "__args__", ())
        model = next(kind for kind in kinds if hasattr(kind, "model_fields"))
        for key in model.model_fields:
            assert re.search(rf"\b{key}\b", PAGE), f"{section}.{key}"
