"""Every field of SamplingParams can be said in a recipe and by --set, and is part of what a journal
is known by, or kept in it."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from sharegen import BeamSearchParams, SamplingParams
from sharegen.cli.flags import assigned
from sharegen.common.mappings import merge
from sharegen.common.structured import StructuredOutputsParams
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.errors import JournalError, UsageError
from sharegen.job.engines import sampling_params
from sharegen.job.run_job import run_job
from sharegen.results.journal.record import Record, read
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.workload.configuration import Configuration, resolve
from sharegen.workload.sampling_section import Sampling

RECIPE = """\
dataset: {source: rows.jsonl, fields: {question: question}}
prompt: "{{ question }}"
sampling: {samples: 2, max_tokens: 3, temperature: 1.0, ignore_eos: true}
"""

SAID = {
    "temperature": "0.5", "top_p": "0.75", "top_k": "7", "min_p": "0.25",
    "repetition_penalty": "1.5", "presence_penalty": "0.5", "frequency_penalty": "-0.5",
    "logit_bias": "{5: 2.5, 7: -9.5}", "allowed_token_ids": "[5, 6, 7]",
    "bad_words": "['no', 'never']", "max_tokens": "null", "min_tokens": "2", "stop": "[END]",
    "stop_token_ids": "[8, 9]", "include_stop_str_in_output": "true", "ignore_eos": "true",
    "detokenize": "false", "skip_special_tokens": "false", "logprobs": "2",
    "prompt_logprobs": "1", "seed": "11", "structured_outputs": "{regex: '[0-9]+'}",
}  # fmt: skip
"""A value of each that is not its default, as --set has it."""

BESIDE = {"samples", "stop_when", "decoding"}
"""Of a job: how many, by which rule fewer, drawn or searched for; SamplingParams call them n."""


def names_of(kind: Any) -> set[str]:
    return {each.name for each in fields(kind)}


def test_a_recipe_has_every_sampling_parameter() -> None:
    ours = names_of(SamplingParams) - {"n"}
    in_recipes = set(Sampling.model_fields) - BESIDE
    assert in_recipes == ours | names_of(BeamSearchParams) and ours == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_every_one_is_heard_by_set(name: str) -> None:
    values = assigned(f"sampling.{name}={SAID[name]}")
    params, _ = sampling_params(Sampling.model_validate(values["sampling"]))
    heard, default = getattr(params, name), getattr(SamplingParams(max_tokens=256, seed=0), name)
    assert heard != default
    told = {tuple: list, StructuredOutputsParams: StructuredOutputsParams.as_dict}
    assert told.get(type(heard), lambda value: value)(heard) == values["sampling"][name]


def make(folder: Path, *assignments: str, **values: Any) -> Configuration:
    file = folder / "mine.yaml"
    if not file.exists():
        file.write_text(RECIPE)
        rows = [{"question": text} for text in ("Tom has 3", "A box holds 12 eggs. How many")]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    machine = {"device": "cpu", "kv_cache_memory": 1 << 22}
    flags: dict[str, Any] = reduce(merge, map(assigned, assignments), {"machine": machine})
    return resolve(str(file), None, flags | values)


@pytest.fixture
def model(folder: Path) -> str:
    return str(folder / "model")


def run(configuration: Configuration, path: Path) -> list[Record]:
    run_job(configuration, path)
    return sorted(read(path), key=lambda record: (record.problem_id, record.sample or 0))


def test_a_journal_keeps_log_probabilities_of_prompts_once(model: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    asked = ("sampling.prompt_logprobs=1", "sampling.logprobs=0")
    records = run(make(tmp_path, *asked, model=model), path)
    tokenizer = load_tokenizer(model)
    assert [(r.sample, r.prompt_logprobs is None) for r in records] == [(0, False), (1, True)] * 2
    for record, text in zip(
        records[::2], ("Tom has 3", "A box holds 12 eggs. How many"), strict=True
    ):
        told = record.prompt_logprobs
        assert told is not None and told[0] is None
        assert [entry[0] for entry in told[1:] if entry] == tokenizer(text)["input_ids"][1:]
        assert all(entry and entry[1] <= max(entry[2].values()) for entry in told[1:])
        assert record.logprobs is not None and all(entry[2] == {} for entry in record.logprobs)
    with pytest.raises(JournalError, match=r"sampling\.prompt_logprobs was 1 and is now null"):
        run_job(make(tmp_path, "sampling.logprobs=0", model=model), path)


def test_samples_without_a_text(model: str, tmp_path: Path) -> None:
    silent = make(tmp_path, "sampling.detokenize=false", model=model, token_ids=True)
    records = run(silent, tmp_path / "a.jsonl")
    texts = run(make(tmp_path, model=model, token_ids=True), tmp_path / "b.jsonl")
    assert [r.token_ids for r in records] == [r.token_ids for r in texts]
    assert {r.completion for r in records} == {""} and all(r.completion for r in texts)
    known = RunFile.read(run_file_path(tmp_path / "a.jsonl"))
    assert known is not None and known.configuration["sampling"]["detokenize"] is False


def test_samples_without_max_tokens(model: str, tmp_path: Path) -> None:
    """All that the context of 512 has room for, unless they end before."""
    configuration = make(tmp_path, "sampling.max_tokens=null", "sampling.ignore_eos=false",
                         "sampling.logit_bias={2: 6.0}", model=model)  # fmt: skip
    records = run(configuration, tmp_path / "a.jsonl")
    assert {r.finish_reason for r in records} <= {"eos", "context"}
    short = run(
        configuration.model_copy(update={"sampling": replace_sampling(configuration, 3)}),
        tmp_path / "b.jsonl",
    )
    for long, cut in zip(records, short, strict=True):
        assert long.completion.startswith(cut.completion.rstrip("\N{REPLACEMENT CHARACTER}"))


def replace_sampling(configuration: Configuration, max_tokens: int) -> Sampling:
    return configuration.sampling.model_copy(update={"max_tokens": max_tokens})


@pytest.mark.parametrize(
    ("recipe", "assignments", "said"),
    [
        (None, [], "the journal would hold nothing of a sample: give --token-ids"),
        (None, ["sampling.stop=[x]", "token_ids=true"], "stop strings are looked for in text"),
        ("self-consistency", ["sampling.stop=[]", "token_ids=true"], "reads what samples say"),
    ],
)
def test_where_a_text_is_needed(
    recipe: str | None, assignments: list[str], said: str, tmp_path: Path
) -> None:
    configure = make if recipe is None else lambda _, *a: resolve(
        recipe, None, reduce(merge, map(assigned, a), {})
    )  # fmt: skip
    with pytest.raises(UsageError, match=f"sampling.detokenize is false: .*{said}"):
        configure(tmp_path, "sampling.detokenize=false", *assignments)


@pytest.mark.parametrize(
    "assignment",
    ["allowed_token_ids=[]", "allowed_token_ids=[-1]", "logprobs=-1", "detokenize=perhaps",
     "logit_bias={a: 1}", "stop_token_ids=[1.5]"],
)  # fmt: skip
def test_values_that_cannot_be_name_the_key(assignment: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=f"^--set sampling.{assignment.partition('=')[0]}"
    ) as found:
        make(tmp_path, f"sampling.{assignment}")
    assert "\n" not in str(found.value)
