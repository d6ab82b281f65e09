from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.common.mappings import merge
from sharegen.errors import DataError, UsageError
from sharegen.results.journal.identity import identity_of
from sharegen.results.journal.run_file import RunFile
from sharegen.workload.configuration import Configuration, resolve

RECIPE = """\
default: small
dataset: {fields: {q: question}}
prompt: "{{ q }}"
example: "{{ q }}"
sampling: {samples: 5, temperature: 0.5}
presets:
  small:
    model: model
    dataset: {source: rows}
    sampling: {samples: 7}
  big: {dataset: {source: someone/big, split: validation}}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(RECIPE)
    for name in ("rows", "model"):
        (tmp_path / "recipe" / name).mkdir()
    return str(tmp_path / "recipe" / "mine.yaml")


def test_the_default_preset_lies_beside_its_recipe(recipe: str, tmp_path: Path) -> None:
    job = resolve(recipe)
    assert job.preset == "small" and job.recipe == "mine"
    assert job.dataset.source == str(tmp_path / "recipe" / "rows")
    assert job.model == str(tmp_path / "recipe" / "model")
    assert (job.sampling.samples, job.sampling.temperature) == (7, 0.5)


def test_flags_go_over_presets_over_the_recipe(recipe: str) -> None:
    job = resolve(recipe, flags={"sampling": {"temperature": 0.9}, "model": "a/b"})
    assert (job.sampling.samples, job.sampling.temperature, job.model) == (7, 0.9, "a/b")


def test_a_preset_by_name_or_by_its_source(recipe: str) -> None:
    by_name = resolve(recipe, "big", {"model": "a/b"})
    assert by_name.dataset.source == "someone/big" and by_name.dataset.split == "validation"
    assert resolve(recipe, "someone/big", {"model": "a/b"}) == by_name


def test_a_file_goes_by_the_bare_recipe(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("{}")
    job = resolve(recipe, str(tmp_path / "mine.jsonl"), {"model": "a/b"})
    assert job.preset is None and job.sampling.samples == 5
    assert job.dataset.source == str(tmp_path / "mine.jsonl")


def test_a_preset_name_stands_for_its_model(recipe: str, tmp_path: Path) -> None:
    job = resolve(recipe, "someone/else", {"model": "small"})
    assert job.model == str(tmp_path / "recipe" / "model")
    assert job.dataset.source == "someone/else"


def test_a_file_that_is_a_link_keeps_its_name(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "0f1e2d").write_bytes(b"GGUF")
    (tmp_path / "mine.gguf").symlink_to("0f1e2d")
    job = resolve(recipe, flags={"model": str(tmp_path / "mine.gguf")})
    assert job.model == str(tmp_path / "mine.gguf")


def test_a_model_flag_is_looked_up_here_and_a_recipe_s_own_beside_it(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "model" / "model").mkdir(parents=True)
    (tmp_path / "recipe" / "only").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    beside = str(tmp_path / "recipe" / "model")
    here = str(tmp_path / "here" / "model")
    assert resolve(recipe).model == beside
    assert resolve(recipe, flags={"model": "small"}).model == beside  # the preset's
    assert resolve(recipe, flags={"model": "model"}).model == here
    assert resolve(recipe, flags={"model": "."}).model == str(tmp_path / "here")
    assert resolve(recipe, flags={"model": "only"}).model == str(tmp_path / "recipe" / "only")
    for folder in ("model/model", "model", "."):  # a folder in it only where it is none itself
        Path(folder, "config.json").touch()
        found = {name: resolve(recipe, flags={"model": name}).model for name in ("model", ".")}
        assert found["model"] == (here if folder != "model/model" else f"{here}/model")
    assert found["."] == str(tmp_path / "here")


@pytest.mark.parametrize(
    ("dataset", "flags", "message"),
    [
        ("smal", {}, "did you mean 'small'"),
        ("zzz", {}, "presets: small, big"),
        ("./none", {}, "no such file"),
        ("big", {}, "--model is needed"),
        ("big", {"model": ""}, "--model is needed"),
        (None, {"few_shot": {"file": "none", "k": 1}}, "--few-shot-file none"),
        (None, {"chat": {"enabled": True}}, "no template 'chat.user'"),
        (None, {"chat": {"enabled": False, "system": "x"}}, "--no-chat"),
        (None, {"sampling": {"min_tokens": 9, "max_tokens": 3}}, "max_tokens is 3"),
        (None, {"sampling": {"temprature": 9}}, "did you mean 'temperature'"),
    ],
)
def test_what_does_not_fit(recipe: str, dataset: str | None, flags: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(recipe, dataset, flags)


def test_a_document_comes_with_questions_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("Text.")
    (tmp_path / "q.jsonl").write_text('{"question": "?"}')
    flags = {"model": "a/b", "dataset": {"document": str(tmp_path / "mine.txt")}}
    for dataset in (None, "needles"):
        with pytest.raises(UsageError, match=r"--document .*mine.txt: needs --dataset QUESTIONS"):
            resolve("long-document", dataset, flags)
    job = resolve("long-document", str(tmp_path / "q.jsonl"), flags)
    assert job.dataset.needles is None and job.dataset.document == str(tmp_path / "mine.txt")
    own = tmp_path / "own.yaml"  # whose questions are the user's already
    own.write_text("prompt: '{{ document }} {{ q }}'\ndataset: {source: q.jsonl}\n")
    assert resolve(str(own), flags=flags).dataset.source == str(tmp_path / "q.jsonl")


@pytest.mark.parametrize(
    ("recipe", "flags", "message"),
    [
        ("self-consistency", {"dataset": {"config": "x"}}, "--dataset-config .* tinymath is here"),
        ("long-document", {"dataset": {"config": "x"}}, "--dataset-config .* is made here"),
        ("bare", {"few_shot": {"file": "q.jsonl"}}, "--few-shot-file: the recipe bare has no"),
        ("bare", {"few_shot": {"file": "q.jsonl", "k": 0}}, "--few-shot-file: the recipe bare"),
        ("bare", {"few_shot": {"k": 2}}, "--few-shot: the recipe bare has no"),
        ("with", {"few_shot": {"file": "q.jsonl"}}, "how many with --few-shot"),
        ("with", {"few_shot": {"file": ""}}, "--few-shot-file : no such file"),
        (
            "bare",
            {"answer": {"match": "first"}},
            "answer.match.* say how answers are read: ",
        ),
        ("self-consistency", {"preset": "gsm8k"}, "--set preset=gsm8k: .* --dataset"),
        ("self-consistency", {"recipe": "zz"}, "--set recipe=zz: .* argument"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, flags: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "prompt: '{{ q }}'\ndataset: {source: q.jsonl}\nmodel: a/b\n"
    Path("bare.yaml").write_text(text)
    Path("with.yaml").write_text(text + "example: '{{ q }}'\n")
    Path("q.jsonl").write_text('{"q": "?"}')
    name = f"./{recipe}.yaml" if recipe in ("bare", "with") else recipe
    with pytest.raises(UsageError, match=message.replace("tinymath", r"\S*tinymath")):
        resolve(name, flags={"model": "a/b"} | flags)
    many = resolve("./with.yaml", flags={"few_shot": {"file": "q.jsonl", "k": 0}})
    assert many.few_shot.k == 0


def test_a_recipe_without_a_dataset_asks_for_one() -> None:
    with pytest.raises(UsageError, match="prompts needs --dataset"):
        resolve("prompts")


def test_chat_has_stops_of_its_own(recipe: str) -> None:
    text = Path(recipe).read_text()
    Path(recipe).write_text(text + "chat: {user: '{{ q }}', stop: ['X']}\n")
    assert resolve(recipe).sampling.stop == []
    assert resolve(recipe, flags={"chat": {"system": "s"}}).sampling.stop == ["X"]
    both = {"chat": {"enabled": True}, "sampling": {"stop": ["Y"]}}
    assert resolve(recipe, flags=both).sampling.stop == ["Y"]


def test_identity_and_extent_part_the_settings(recipe: str) -> None:
    job = resolve(recipe)
    more = resolve(
        recipe,
        flags={
            "dataset": {"limit": 3},
            "sampling": {"samples": 9},
            "machine": {
                "max_sequences": 4,
                "kv_cache_memory": 1,
                "block_size": 32,
                "compile": False,
            },
        },
    )
    assert more.identity == job.identity and more.extent != job.extent
    for changed in (
        {"sampling": {"temperature": 0.1}},
        {"sampling": {"seed": 1}},
        {"sampling": {"stop": ["x"]}},
        {"sampling": {"max_tokens": 9}},
        {"dataset": {"id": "name"}},
        {"prompt": "{{ q }}?"},
        {"machine": {"dtype": "bfloat16"}},
        {"machine": {"quantization": "fp8"}},
        {"machine": {"kv_cache_dtype": "fp8"}},
    ):
        assert resolve(recipe, flags=changed).identity != job.identity


def test_where_things_lie_and_what_is_not_in_use_is_no_identity(recipe: str) -> None:
    """Of files and folders the content counts, which a run fingerprints."""
    job = resolve(recipe)
    for changed in (
        {"model": "a/b"},
        {"adapter": "lora"},
        {"few_shot": {"k": 1}},
        {"dataset": {"split": "train", "fields": {"q": "text"}}},
        {"chat": {"user": "{{ q }}!", "stop": ["x"]}},
    ):
        other = resolve(recipe, flags=changed)
        assert other.identity == job.identity and other.extent != job.extent
    chat = {"enabled": True, "user": "{{ q }}!"}
    talk = resolve(recipe, flags={"chat": chat}).identity
    assert talk != job.identity
    assert talk == resolve(recipe, flags={"chat": chat, "prompt": "{{ q }}?"}).identity


def test_the_settings_come_back_from_a_run_file(recipe: str, tmp_path: Path) -> None:
    machine = {"dtype": "bfloat16", "quantization": "fp8", "kv_cache_dtype": "fp8"}
    job = resolve(recipe, flags={"machine": machine, "dataset": {"limit": 2}})
    path = tmp_path / "a.run.json"
    configuration = json.loads(json.dumps(job.identity | {"dtype": "bfloat16"}))
    RunFile(configuration=configuration, extent=job.extent).write(path)
    read = RunFile.read(path)
    assert read is not None and Configuration.from_settings(read.settings) == job


@pytest.mark.parametrize(
    ("preset", "row"),
    [
        ("humaneval", {"task_id": "a", "prompt": "def f():", "entry_point": "f", "test": ""}),
        ("apps", {"problem_id": 1, "question": "Sum.", "input_output": "", "solutions": ""}),
        ("mbpp", {"text": "Add.", "code": "x", "test_list": ["assert f()"], "task_id": 1}),
    ],
)
def test_a_file_of_programs_takes_the_preset_of_its_schema(
    tmp_path: Path, preset: str, row: dict[str, Any]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    flags = {"model": "a/b", "few_shot": {"k": 0}}
    job = resolve("code-sample", str(path), flags)
    assert (job.preset, job.dataset.rows, job.dataset.source) == (preset, preset, str(path))
    assert job.dataset.config is None
    named = resolve("code-sample", str(path), flags, schema="humaneval")
    assert named.preset == "humaneval"
    with pytest.raises(UsageError, match="unknown schema 'x'"):
        resolve("code-sample", str(path), flags, schema="x")


@pytest.mark.parametrize(
    ("recipe", "dataset", "preset"),
    [("self-consistency", "GSM8K", "gsm8k"), ("Self-Consistency", "TinyMath", "tinymath"),
     ("code-sample", "APPS", "apps"), ("code-sample", "HumanEval", "humaneval"),
     ("CODE-SAMPLE", "Mbpp", "mbpp"), ("code-sample", "OpenAI/OpenAI_HumanEval", "humaneval")],
)  # fmt: skip
def test_names_are_found_whatever_their_case(recipe: str, dataset: str, preset: str) -> None:
    """And are one job: what is recorded is the name as the recipe has it."""
    flags = {"model": "a/b"}
    found = resolve(recipe, dataset, flags)
    assert found == resolve(recipe.lower(), preset, flags)
    assert found.preset == preset and found.recipe == recipe.lower()


def test_schemas_and_models_are_found_whatever_their_case(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "?", "input_output": "{}"}))
    flags = {"model": "a/b", "few_shot": {"k": 0}}
    plain = resolve("code-sample", str(path), flags)
    assert resolve("code-sample", str(path), flags, schema="APPS") == plain
    assert resolve("code-sample", str(path), merge(flags, {"dataset": {"rows": "Apps"}})) == plain
    tiny = resolve("self-consistency", None, {"model": "TinyMath"})
    assert tiny.model == resolve("self-consistency").model


def test_a_file_of_a_preset_s_name_is_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "GSM8K").mkdir()
    found = resolve("self-consistency", "GSM8K", {"model": "a/b"})
    assert (found.preset, found.dataset.source) == (None, str(tmp_path / "GSM8K"))


@pytest.mark.parametrize(
    ("recipe", "dataset", "schema", "meant"),
    [("self-consistancy", None, None, "self-consistency"), ("PROMPT", "x", None, "prompts"),
     ("self-consistency", "GMS8K", None, "gsm8k"), ("code-sample", "Human-Eval", None, "humaneval"),
     ("code-sample", "apps", "HumanEvl", "humaneval")],
)  # fmt: skip
def test_nearly_right_names_are_suggested(
    recipe: str, dataset: str | None, schema: str | None, meant: str
) -> None:
    with pytest.raises(UsageError, match=f"did you mean '{meant}'"):
        resolve(recipe, dataset, {"model": "a/b"}, schema)


def test_a_file_of_no_known_schema(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}')
    with pytest.raises(DataError, match="--schema"):
        resolve("code-sample", str(tmp_path / "rows.jsonl"), {"model": "a/b"})


def test_structured_outputs_are_part_of_the_identity_with_the_order_of_their_properties(
    recipe: str,
) -> None:
    def identity(schema: Any) -> Any:
        job = resolve(recipe, flags={"sampling": {"structured_outputs": {"json": schema}}})
        assert Configuration.from_settings(merge(job.identity, job.extent)) is not None
        return identity_of(job.identity)

    one = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
    other = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}}
    assert identity(one) != identity(other)
    assert identity(one)["sampling.structured_outputs.json"] == json.dumps(one)
    assert identity_of(resolve(recipe).identity)["sampling.structured_outputs"] is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"json": {"enum": []}}, "structured_outputs.json: Unsatisfiable schema: anyOf is empty"),
        ({"regex": "(a"}, "structured_outputs.regex: unclosed group"),
        ({"regx": "a"}, "structured_outputs has no 'regx': give one of json, regex"),
    ],
)
def test_structured_outputs_that_cannot_be_are_refused_before_a_model_is_read(
    recipe: str, value: Any, said: str
) -> None:
    with pytest.raises(UsageError) as error:
        resolve(recipe, flags={"sampling": {"structured_outputs": value}})
    assert said in str(error.value) and "\n" not in str(error.value)
