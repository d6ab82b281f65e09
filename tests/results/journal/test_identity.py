"""What makes two journals one job, and how a difference is told."""

from __future__ import annotations

from typing import Any

import pytest

from sharegen.results.journal import identity
from sharegen.results.journal.identity import causes, differences, identity_of

SETTINGS = {
    "prompt": "{{ q }}",
    "chat": {"enabled": False, "system": None, "stop": []},
    "sampling": {"temperature": 0.5},
    "fingerprints": {"model": "f00d", "dataset": "d", "few_shot": "e"},
}


def test_an_identity_is_its_own_identity() -> None:
    flat = identity_of(SETTINGS)
    assert identity_of(flat) == flat and "fingerprints.dataset" not in flat


def test_a_name_that_is_new_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a setting joins: what was recorded before it goes on under its former default."""
    before: dict[str, Any] = {"sampling": {"seed": 0}}
    monkeypatch.setitem(identity.NEWER, "machine.kv_dtype", "model")
    same, other = (before | {"machine": {"kv_dtype": kind}} for kind in ("model", "fp8"))
    assert identity_of(before) == identity_of(same)
    assert differences(identity_of(before), identity_of(other)) == [
        'machine.kv_dtype was not set and is now "fp8"'
    ]


def test_what_differs_has_a_name() -> None:
    before = {"fingerprints": {"model": "a", "few_shot": "b"}, "prompt": "p"}
    now = {"fingerprints": {"model": "x", "few_shot": "y"}, "prompt": "q"}
    assert differences(before, now) == [
        'another checkpoint (fingerprints.model was "a" and is now "x")',
        'other few-shot examples (fingerprints.few_shot was "b" and is now "y")',
        'another template (prompt was "p" and is now "q")',
    ]


def test_where_what_differs_came_from() -> None:
    before, now = {"fingerprints.few_shot": "a", "seed": 0}, {"fingerprints.few_shot": "b"}
    recorded, given = ({"model": k, "few_shot": {"k": k, "file": "x"}} for k in (1, 2))
    assert causes(before, now, recorded, given) == ["few_shot.k was 1 and is now 2"]
    assert causes(before, before, recorded, given) == []


def test_differences_name_nested_fields_with_both_values() -> None:
    before = {"model": "a", "sampling": {"top_p": 1.0, "seed": 0, "min_p": 0.1}, "same": [1]}
    now = {"model": "b", "sampling": {"top_p": 1, "seed": 3, "top_k": 5}, "same": [1]}
    assert differences(before, now) == [
        'model was "a" and is now "b"',
        "sampling.seed was 0 and is now 3",
        "sampling.min_p was 0.1 and is no longer set",
        "sampling.top_k was not set and is now 5",
    ]


def test_an_empty_section_differs_from_a_filled_one() -> None:
    assert differences({"where": {}}, {"where": {"level": 1}}) == [
        "where was {} and is no longer set",
        "where.level was not set and is now 1",
    ]


def test_long_values_are_cut_to_where_they_differ() -> None:
    common = "line one\n" * 500
    (phrase,) = differences({"prompt": common + "A" * 200}, {"prompt": common + "B" * 200})
    assert len(phrase) < 250 and "\n" not in phrase
    assert "AAA" in phrase and "BBB" in phrase
    (phrase,) = differences({"prompt": common}, {"prompt": common + "more"})
    assert "more" in phrase
    (phrase,) = differences({}, {"prompt": "x" * 500})
    assert len(phrase) < 120
