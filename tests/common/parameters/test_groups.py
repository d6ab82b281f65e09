"""What is declared once says the same on every surface."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from inspect import signature
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
import torch

from sharegen.common.parameters.groups import FlaggedKey, flagged_keys
from sharegen.common.parameters.parameter import declared
from sharegen.common.parameters.sampling import SamplingParameters
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import BeamSearchParams, SamplingParams
from sharegen.errors import UsageError
from sharegen.llm import DECLARED_IN, LLM
from sharegen.workload.configuration import Configuration
from sharegen.workload.request_body import RequestBody
from sharegen.workload.validation import Strict

FLAGGED = {each.key: each for each in flagged_keys()}


def section_of(key: str) -> type[Strict]:
    """The section that a key with dots is in."""
    section = key.rpartition(".")[0]
    kind = Configuration.model_fields[section].annotation if section else Configuration
    assert isinstance(kind, type) and issubclass(kind, Strict)
    return kind


@pytest.mark.parametrize("each", FLAGGED.values(), ids=list(FLAGGED))
def test_a_flag_s_key_is_one_of_its_section_with_the_same_default(each: FlaggedKey) -> None:
    field = section_of(each.key).model_fields[each.declared.name]
    if each.key not in ("sampling.stop", "keep.fields"):
        assert field.default == each.declared.default


@pytest.mark.parametrize(
    "description",
    [
        each.parameter.description
        for group in (Configuration, SamplingParams, EngineConfig)
        for each in declared(group).values()
    ],
)
def test_descriptions_are_sentences(description: str) -> None:
    assert re.match(r'[A-Z"`]', description)
    assert description.endswith(".")
    assert not description.startswith("Of ")


def test_flags_are_of_one_key_each() -> None:
    names = [name for each in FLAGGED.values() for name in each.flag.names.split(", ")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("sampling.samples", "1"),
        ("sampling.max_tokens", "256"),
        ("sampling.seed", "0"),
        ("sampling.stop_when", "none"),
        ("dataset.split", "test"),
        ("machine.swap_space", "0"),
        ("machine.kv_cache_dtype", "auto"),
        ("machine.compile", "where the job is done sooner so"),
        ("model", None),
        ("reorder", None),
    ],
)
def test_what_holds_without_a_flag_is_said(key: str, said: str | None) -> None:
    assert FLAGGED[key].default == said
    assert FLAGGED[key].default_in({}) == said


@pytest.mark.parametrize(
    ("key", "job", "said"),
    [
        ("sampling.temperature", {"sampling": {"temperature": 0.70}}, "0.7"),
        ("sampling.temperature", {"sampling": {"samples": 4}}, "1"),
        ("sampling.temperature", {"sampling": None}, "1"),
        ("sampling.max_tokens", {"sampling": {"max_tokens": None}}, "none"),
        ("sampling.stop", {"sampling": {"stop": ["\n\n", 'say "é"']}}, r'"\n\n", "say \"é\""'),
        ("sampling.stop", {"sampling": {"stop": []}}, "none"),
        ("chat.enabled", {"chat": {"enabled": True}}, "chat"),
        ("chat.enabled", {"chat": {"enabled": False}}, "no-chat"),
        ("chat.system", {"chat": {"system": 'Be "terse".\n'}}, r'Be "terse".\n'),
        ("model", {"model": "./model"}, "./model"),
    ],
)
def test_what_holds_with_a_recipe_is_said(key: str, job: dict[str, Any], said: str) -> None:
    assert FLAGGED[key].default_in(job) == said


def test_every_parameter_of_a_request_and_an_engine_is_described() -> None:
    for kind in (SamplingParams, EngineConfig):
        names = {each.name for each in fields(kind)}
        assert names == declared(kind).keys()
        assert all(f"\n{name}: " in (kind.__doc__ or "") for name in names)


ARGUMENTS = {name: each for group in DECLARED_IN for name, each in declared(group).items()}
# For servers, jobs and tests.
NOT_IN_CALLS = {"arriving", "state_slots", "kv_cache_limit", "prefill_tokens", "first_rows"}
NOT_IN_LM_EVAL = {"adapter", "max_model_len",  # which the harness calls peft and max_length
                  "block_size", "lookahead"}  # which prompts are split by  # fmt: skip
WIDER = {"dtype": str | torch.dtype, "seed": int | None}  # "half", torch.half; None is 0


def kinds_of(hint: Any) -> set[Any]:
    """The types that are joined by `|`."""
    return set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}


@pytest.mark.parametrize("name", sorted(ARGUMENTS.keys() - NOT_IN_CALLS))
def test_an_argument_of_a_call_has_the_declared_type_default_and_description(name: str) -> None:
    known = {"torch": torch, "nn": torch.nn} | vars(sys.modules[LLM.__module__])
    taken = signature(LLM.__init__, eval_str=True, globals=known).parameters[name]
    assert kinds_of(taken.annotation) == kinds_of(WIDER.get(name, ARGUMENTS[name].hint))
    assert taken.default == ARGUMENTS[name].default
    assert_described(LLM, name)


def assert_described(kind: type, name: str) -> None:
    """Its docstring has an entry that begins with the declared description."""
    text = " ".join((kind.__doc__ or "").split())
    assert f" {name}: {ARGUMENTS[name].parameter.description.replace('null ', 'None ')}" in text


def test_a_call_takes_nothing_else() -> None:
    assert signature(LLM).parameters.keys() - ARGUMENTS.keys() == {"model", "tokenizer", "vllm"}
    assert not signature(LLM).parameters.keys() & NOT_IN_CALLS


def test_model_args_of_the_harness_are_those_of_a_call() -> None:
    pytest.importorskip("lm_eval")
    from sharegen.lm_eval.model import SharegenLM

    taken = signature(SharegenLM).parameters
    assert ARGUMENTS.keys() - taken.keys() == NOT_IN_CALLS | NOT_IN_LM_EVAL
    for name in ARGUMENTS.keys() & taken.keys() - {"device"}:  # which the harness always says
        assert taken[name].default == ARGUMENTS[name].default
        assert_described(SharegenLM, name)


def test_bodies_of_requests_have_the_sampling_parameters() -> None:
    shared = declared(SamplingParameters).keys()
    left_out = shared - RequestBody.model_fields.keys()
    assert left_out == {"detokenize", "logprobs", "prompt_logprobs"}


@pytest.mark.parametrize("values", [(None, 4), (0, 4), (1.5, 4), (2, 0)])
def test_a_parameter_without_a_default_is_checked_whatever_it_is(values: tuple[Any, int]) -> None:
    with pytest.raises(UsageError, match="it must be a whole number"):
        BeamSearchParams(*values)
