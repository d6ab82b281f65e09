from __future__ import annotations

import logging

import pytest

from sharegen.common.remarks import heard, remark


def test_each_line_is_heard_once(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    with heard(said.append):
        for line in ("a", "b %s", "a"):
            remark(line)
    assert said == ["a", "b %s"]
    assert not caplog.messages  # nobody hears it a second time
    remark("c")
    assert said == ["a", "b %s"] and caplog.messages == ["c"]


def test_what_nobody_would_read_is_counted() -> None:
    said: list[str] = []
    with heard(said.append):
        for number in range(1_060):
            remark(f"line {number}")
    assert len(said) == 51 and said[-1] == "and 1,010 more such lines"
    assert logging.getLogger("sharegen").propagate
