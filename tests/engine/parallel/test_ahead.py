"""A model that is loaded before workers are copied is theirs only where it is what was asked."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, cast

import pytest

from sharegen.engine.parallel.ahead import LoadedAhead, ModelAhead
from sharegen.engine.parallel.messages import Setting

ASKED = ModelAhead(model="folder", dtype="float32")
MODEL: Any = object()


def setting(**other: Any) -> Setting:
    same = {"device": "cpu", "dtype": "float32"}
    return Setting("folder", None, cast(Any, None), **{**same, **other})


def test_it_is_what_the_setting_says() -> None:
    assert LoadedAhead(ASKED, MODEL, ()).given_to(setting()).model is MODEL


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "bfloat16"}, {"dtype": "auto"}, {"device": "cuda"}, {"adapter": "lora"},
        {"revision": "v1"}, {"trust_remote_code": True}, {"quantization": "fp8"}, {"ranks": 2},
        {"load": lambda device: MODEL},
    ],
)  # fmt: skip
def test_what_is_loaded_otherwise_is_loaded_anew(other: dict[str, Any]) -> None:
    asked = setting(**other)
    assert LoadedAhead(ASKED, MODEL, ()).given_to(asked) is asked


def test_another_model_is_loaded_anew() -> None:
    asked = replace(setting(), model="other")
    assert LoadedAhead(ASKED, MODEL, ("of no interest",)).given_to(asked) is asked


def test_what_loading_warned_of_is_told_by_each_worker() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        LoadedAhead(ASKED, MODEL, ("one", "two")).given_to(setting())
    assert [str(each.message) for each in told] == ["one", "two"]
