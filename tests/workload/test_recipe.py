from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.errors import UsageError
from sharegen.results.answer import extract, normalise
from sharegen.workload.recipe import Job, load_recipe, merge, nearest, recipe_names, validate


def test_all_shipped_recipes_are_valid() -> None:
    assert {"self-consistency", "prompts"} <= set(recipe_names())
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.description
        for preset in (None, *recipe.presets):
            validate(Job, recipe.merged(preset), name)


def test_self_consistency_asks_what_tinymath_was_trained_on() -> None:
    job = validate(Job, load_recipe("self-consistency").merged("tinymath"), "recipe")
    assert job.prompt == "Question: {{ question }}\nAnswer:"
    assert job.example == "Question: {{ question }}\nAnswer: {{ answer }}\n\n"
    assert job.sampling.stop == ["\n\n"]
    assert job.model == "tinymath/model"


def test_gsm8k_is_eight_shot_from_its_train_split() -> None:
    job = validate(Job, load_recipe("self-consistency").merged("gsm8k"), "recipe")
    assert (job.dataset.source, job.dataset.config) == ("openai/gsm8k", "main")
    assert (job.few_shot.k, job.few_shot.split, job.dataset.split) == (8, "train", "test")


def test_merge_goes_section_by_section() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 3}
    assert merge(base, {"a": {"y": [9]}, "c": None}) == {
        "a": {"x": 1, "y": [9]}, "b": 3, "c": None,
    }  # fmt: skip
    assert base == {"a": {"x": 1, "y": [1, 2]}, "b": 3}
    assert merge({"a": 1}, {"a": {"x": 2}}) == {"a": {"x": 2}}


def test_nearest() -> None:
    assert nearest("temprature", ["temperature", "top_p"]) == "temperature"
    assert nearest("zzz", ["temperature"]) is None


def test_a_recipe_of_ones_own_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yml").write_text("prompt: '{{ a }}'\nsampling: {samples: 3}\n")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("mine.yml").job["sampling"] == {"samples": 3}
    with pytest.raises(UsageError, match="unknown recipe 'mine'"):
        load_recipe("mine")


def test_loading_a_recipe_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"prompt: !!python/object/apply:os.mkdir ['{tmp_path}/made']\n")
    with pytest.raises(UsageError, match=r"mine\.yaml.*not YAML"):
        load_recipe(str(path))
    assert not (tmp_path / "made").exists()


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").mkdir()
    with pytest.raises(UsageError, match="no such recipe file"):
        load_recipe(str(tmp_path / "x.yaml"))


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("#### 18", "18"),
        ("####18", "18"),
        ("#### 18 dollars", "18"),
        ("#### about 18 eggs.", "18"),
        ("#### 18.", "18"),
        ("#### 18.50 dollars.", "18.5"),
        ("#### .5", "0.5"),
        ("#### -5", "-5"),
        ("#### −5", "-5"),
        ("#### -$5", "-5"),
        ("#### $-5", "-5"),
        ("#### $1,018.00", "1018"),
        ("#### \\$ 18", "18"),
        ("#### 18%", "18"),
        ("#### **18**", "18"),
        ("#### 3/4", "0.75"),
        ("#### 3 1/2 pies", "3.5"),
        ("#### 5:30 pm", "5:30"),
        ("#### 3, or 4", "3"),
        ("#### 7\n\n#### 9\nQuestion 12", "9"),
        ("So the answer is $1,018.", "1018"),
        ("#### none", None),
    ],
)
def test_the_answer_of_self_consistency_is_the_number_alone(line: str, answer: str | None) -> None:
    wanted = validate(Job, load_recipe("self-consistency").merged("gsm8k"), "recipe").answer
    assert wanted is not None
    found = extract(f"It makes 4 * 4 = 16.\n{line}", wanted.patterns, wanted.match)
    assert (found and normalise(found)) == answer
