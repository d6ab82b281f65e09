from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.common.mappings import merge
from sharegen.errors import UsageError
from sharegen.results.answers.normal import normalise
from sharegen.results.answers.reader import AnswerReader
from sharegen.workload.recipe import Job, find_recipe, load_recipe, recipe_names
from sharegen.workload.validation import validate


def test_all_bundled_recipes_are_valid() -> None:
    assert {"self-consistency", "prompts"} <= set(recipe_names())
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.description
        for preset in (None, *recipe.presets):
            validate(Job, recipe.merged(preset), name)


def test_self_consistency_asks_what_tinymath_was_trained_on() -> None:
    job = validate(Job, load_recipe("self-consistency").merged("tinymath"), "recipe")
    assert job.prompt.text == "Question: {{ question }}\nAnswer:"
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
    reader = AnswerReader(wanted.extract, tuple(wanted.patterns), wanted.match)
    found = reader.read(f"It makes 4 * 4 = 16.\n{line}")
    assert (found and normalise(found.answer)) == answer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [{'*a, ' * 99}]\n" for i in range(200)),
            r":3\d: .*10,000 values",
        ),
        ("\nlimit: " + "9" * 6000, ":3: .*a number of 6,000 digits"),
        ("\nextra: " + "[" * 5000, ":3: .*more than 32 levels"),
        (
            "dataset: {limit: 2024-13-45}",
            "dataset.limit is '2024-13-45': it must be a whole",
        ),
        ("x" * 300_000, "is not a recipe: more than 262,144 bytes"),
        ("default: [a]\npresets: {a: {}}", r"'default' names \['a'\]"),
        ("presets: {1: {}}", "'presets' is a mapping"),
        ("presets: {" + ", ".join(f"a{i}: {{}}" for i in range(200)) + "}", "200 presets: at most"),
        ("sampling: {stop: " + "x" * 10_000 + "}", "sampling.stop is '.{0,90}: it must be"),
        ("sampling: {" + "x" * 100 + ": 1}", "unknown key 'sampling.x{60,80}: "),
        ("max_tokens: 5", "unknown key 'max_tokens': did you mean 'sampling.max_tokens'"),
        ("sampling: {n: 5}", "unknown key 'sampling.n': did you mean 'sampling.samples'"),
        ("doc_to_target: a", "unknown key 'doc_to_target': did you mean 'answer.gold'"),
        ("dataset: {columns: {a: b}}", "'dataset.columns': did you mean 'dataset.fields'"),
        ("samples: 5", "unknown key 'samples': did you mean 'sampling.samples'"),
        ("answer: {pattern: x}", "unknown key 'answer.pattern': did you mean 'patterns'"),
        ("sampling: {temprature: 0}", "unknown key 'sampling.temprature': did you mean 'temp"),
        ("answer: {extract: numbre}", "answer.extract is 'numbre': .*'number'.*'choice'.*'text'"),
        ("answer: {gold: {field: a}}", "answer is .*say how answers are read: 'extract'"),
        ("answer: {extract: text, match: first}", "answer is .*'match' chooses among"),
        ("answer: {extract: text, gold: {}}", "answer.gold is .*'field', or 'template'"),
        ("answer: {extract: text, gold: {field: '{{ a }}'}}", "a template stands in 'template'"),
        (
            "answer: {extract: text, gold: a}",
            "answer.gold is 'a': it must be a mapping with",
        ),
        ("answer: {extract: text, gold: {field: a, template: b}}", "set one of them to null"),
        ("dataset: {fields: {a: '{{ b }}'}}", "dataset.fields.* a column's name, and no template"),
        ("few_shot: {seed: 1, indices: [1]}", "few_shot is .*both choose the rows"),
        ("chat: {date: soon}", "chat.date is 'soon': neither a date as 2026-11-26"),
        ("answer: {patterns: ['" + "(" * 500 + "']}", "answer.patterns is .*not a regular exp"),
        ("answer: {patterns: ['a{99999999999}']}", "the repetition number is too large"),
        ("answer: {patterns: ['" + "a" * 1001 + "']}", "more than 1,000 characters"),
        ("answer: {patterns: [" + "a, " * 21 + "]}", "at most 20"),
        ("dataset: {source: " + "x" * 300 + "}", "neither a path nor a hub id"),
        ('model: "a\\0b"', "neither a path nor a hub id"),
        ("dataset: {needles: {words: 1000000000000}}", "it must be at most 10000000"),
    ],
    ids=lambda value: value[:24],
)
def test_what_goes_too_far_is_one_short_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"prompt: '{{{{ q }}}}'\n{text}\n")
    with pytest.raises(UsageError, match=message) as error:
        load_recipe(str(path))
    said = str(error.value)
    assert said.startswith(str(path)) and len(said) < 500 and "\n" not in said


def test_a_misspelt_key_is_named_before_the_one_that_is_missing_for_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("promt: '{{ q }}'\n")
    with pytest.raises(UsageError, match="unknown key 'promt': did you mean 'prompt'"):
        load_recipe(str(tmp_path / "mine.yaml"))


def test_a_template_that_never_ends_is_named(tmp_path: Path, short: None) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("prompt: x\nchat: {user: '{{ 9**(9**9) }}'}\n")
    with pytest.raises(UsageError, match=r"mine\.yaml: chat\.user is .*takes more than 0\.3 s"):
        load_recipe(str(path))


def test_many_templates_are_no_way_around_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharegen.workload.recipe._MAX_CHECKING", 0.0)
    (tmp_path / "mine.yaml").write_text("prompt: '{{ 1 + 1 }}'\n")
    with pytest.raises(UsageError, match="take more than 0 s to check"):
        load_recipe(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gsm8k", "gsm8k is a dataset: write self-consistency --dataset gsm8k"),
        ("GSM8K", "write self-consistency --dataset gsm8k"),
        ("gsm8", "write self-consistency --dataset gsm8k"),
        ("needles", "write long-document --dataset needles"),
        ("humaneval", "humaneval is a dataset: write sharegen code-sample humaneval"),
        ("self", "did you mean 'self-consistency'?"),
        ("prompt", "did you mean 'prompts'?"),
        ("rows.jsonl", "rows.jsonl is a file of rows: write a recipe, and --dataset rows.jsonl"),
        ("data/rows.csv.gz", "is a file of rows"),
        ("openai/gsm8k", "no such recipe file (rows go by --dataset)"),
        ("", "there are batch, "),
    ],
)
def test_what_is_no_recipe_says_what_to_write(name: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_recipe(name)
    assert said in str(raised.value)
