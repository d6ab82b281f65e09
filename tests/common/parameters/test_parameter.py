"""What a declared parameter takes, what it says, and that its surfaces agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ValidationError

from sharegen.common.parameters.parameter import Parameter, check, declared
from sharegen.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Group:
    share: Annotated[float, Parameter("A share.", ge=0, lt=1, examples=(0.5,))] = 0.0
    most: Annotated[int | None, Parameter("At most.", ge=1)] = None
    level: Annotated[int, Parameter("A level.", ge=-2, le=9)] = 0
    kind: Annotated[Literal["auto", "fp8"], Parameter("A kind.")] = "auto"
    ids: Annotated[Sequence[int] | None, Parameter("Some ids.")] = None
    on: Annotated[bool, Parameter("Whether it is on.")] = False


class Section(BaseModel, Group):  # type: ignore[misc]
    most: int | None = 3


@dataclass(frozen=True, kw_only=True)
class Wider(Group):
    share: float | None = None  # type: ignore[assignment]


GROUP = declared(Group)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("share", [0, 0.5, 0.999], [-0.1, 1, math.nan, math.inf, True, "0.5", None]),
        ("most", [None, 1, 1 << 70], [0, 1.0, False, "1"]),
        ("level", [-2, 9], [-3, 10, None, 0.5]),
        ("kind", ["auto", "fp8"], ["int4", None, 1]),
        ("ids", [None, [], (1, 2)], ["12", 3, [1.5], [True], {1: 2}]),
        ("on", [True, False], [0, 1, "yes", None]),
    ],
)
def test_values_in_and_out_of_a_range(name: str, good: list[Any], bad: list[Any]) -> None:
    assert all(map(GROUP[name].takes, good))
    assert not any(map(GROUP[name].takes, bad))


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("share", "a number of at least 0 and below 1"),
        ("most", "a whole number of at least 1, or None"),
        ("level", "a whole number from -2 to 9"),
        ("kind", "'auto' or 'fp8'"),
        ("ids", "a list, or None"),
        ("on", "True or False"),
    ],
)
def test_a_range_in_words(name: str, want: str) -> None:
    assert GROUP[name].want == want


def test_what_is_out_of_its_range_is_named_with_the_range() -> None:
    check(Group(share=0.5), GROUP.values())
    with pytest.raises(UsageError, match=r"^share is 2: it must be a number of at least 0 and "):
        check(Group(share=2), GROUP.values())


def test_pydantic_takes_ranges_and_descriptions() -> None:
    properties = Section.model_json_schema()["properties"]
    share = properties["share"]
    assert (share["description"], share["minimum"], share["exclusiveMaximum"]) == ("A share.", 0, 1)
    assert share["examples"] == [0.5]
    assert Section(share=0.5).model_dump()["most"] == 3
    for bad in ({"share": 1}, {"share": math.nan}, {"level": 10}, {"kind": "int4"}):
        with pytest.raises(ValidationError):
            Section.model_validate(bad)


def test_a_field_of_another_type_keeps_its_parameter() -> None:
    found = declared(Wider)["share"]
    assert (found.parameter.description, found.default) == ("A share.", None)
    assert found.takes(None)
    assert not found.takes(1)
