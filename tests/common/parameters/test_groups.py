"""What is declared once says the same on every surface."""

from __future__ import annotations

import re
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest

from sharegen.common.parameters.data import CheckpointParameters
from sharegen.common.parameters.groups import FlaggedKey, flagged_keys
from sharegen.common.parameters.machine import LoadParameters
from sharegen.common.parameters.parameter import declared
from sharegen.common.parameters.sampling import SamplingParameters
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import BeamSearchParams, SamplingParams
from sharegen.errors import UsageError
from sharegen.llm import LLM
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
        ("sampling.samples", "the recipe's, or 1"),
        ("sampling.max_tokens", "the recipe's, or 256"),
        ("sampling.stop_when", "the recipe's, or none"),
        ("dataset.split", "the recipe's, or test"),
        ("machine.swap_space", "0"),
        ("machine.kv_cache_dtype", "auto"),
        ("machine.compile", "yes, where they compile"),
        ("model", "the recipe's"),
        ("reorder", None),
    ],
)
def test_what_holds_without_a_flag_is_said(key: str, said: str | None) -> None:
    assert FLAGGED[key].default == said


def test_every_parameter_of_a_request_and_an_engine_is_described() -> None:
    for kind in (SamplingParams, EngineConfig):
        names = {each.name for each in fields(kind)}
        assert names == declared(kind).keys()
        assert all(f"    {name}: " in (kind.__doc__ or "") for name in names)


def test_arguments_of_a_call_have_the_declared_defaults() -> None:
    for group in (EngineConfig, LoadParameters, CheckpointParameters):
        for name, each in declared(group).items():
            taken = signature(LLM).parameters.get(name)
            assert taken is None or taken.default == each.default


def test_bodies_of_requests_have_the_sampling_parameters() -> None:
    shared = declared(SamplingParameters).keys()
    left_out = shared - RequestBody.model_fields.keys()
    assert left_out == {"detokenize", "logprobs", "prompt_logprobs"}


@pytest.mark.parametrize("values", [(None, 4), (0, 4), (1.5, 4), (2, 0)])
def test_a_parameter_without_a_default_is_checked_whatever_it_is(values: tuple[Any, int]) -> None:
    with pytest.raises(UsageError, match="it must be a whole number"):
        BeamSearchParams(*values)
