"""The rules of `--stop-when`, as they are written."""

from __future__ import annotations

import pytest

from sharegen.common.stop_rule import StopRule


def test_rules_have_one_spelling() -> None:
    for text, named in (
        ("decided", "decided"),
        ("confident", "confident=0.95"),
        ("confident=.9", "confident=0.9"),
        ("window", "window=5"),
        ("window=08", "window=8"),
        ("right=3", "right=3"),
    ):
        rule = StopRule.parse(text)
        assert str(rule) == named and StopRule.parse(named) == rule


def test_only_one_rule_keeps_the_vote_of_all() -> None:
    rules = [StopRule.parse(text) for text in ("decided", "confident", "window", "right=1")]
    assert [rule.is_exact for rule in rules] == [True, False, False, False]
    assert [rule.votes for rule in rules] == [True, True, True, False]
    assert rules[1].named == "confident=0.95, approximate" and rules[0].named == "decided"


@pytest.mark.parametrize(
    "text",
    ["", "soon", "decided=3", "confident=", "confident=1", "confident=0.5", "confident=nan",
     "window=1", "window=2.5", "right", "right=0", "right=-1", "right=²", "Decided"],
)  # fmt: skip
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError):
        StopRule.parse(text)
