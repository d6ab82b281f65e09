from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest

import sharegen
from sharegen.common.log import handled_by, log


def test_each_line_is_handled_once(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    with handled_by(said.append):
        for line in ("a", "b %s", "a"):
            log(line)
    assert said == ["a", "b %s"]
    assert not caplog.messages  # it does not propagate, too
    log("c")
    assert said == ["a", "b %s"] and caplog.messages == ["c"]


def test_what_nobody_would_read_is_counted() -> None:
    said: list[str] = []
    with handled_by(said.append):
        for number in range(1_060):
            log(f"line {number}")
    assert len(said) == 51 and said[-1] == "and 1,010 more such lines"
    assert logging.getLogger("sharegen").propagate


def test_a_warning_of_the_engine_is_a_line() -> None:
    said: list[str] = []
    where = Path(sharegen.__file__).parent / "engine" / "engine.py"
    with warnings.catch_warnings(record=True) as shown:
        with handled_by(said.append):
            for text in ("out of memory", "worker 2 is gone"):
                warnings.warn_explicit(text, UserWarning, str(where), 7, "sharegen.engine.engine")
            warnings.warn("of somebody else", stacklevel=1)
        warnings.warn("later", stacklevel=1)
    assert said == ["out of memory", "worker 2 is gone"]
    assert [str(warning.message) for warning in shown] == ["of somebody else", "later"]
