"""Grammars that a process of its own tries first: what crashes, loops or swells costs one."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import pytest

from sharegen.common import confined, grammar
from sharegen.common.grammar import prepared
from sharegen.common.structured import StructuredOutputsParams
from sharegen.errors import UsageError
from tests.common.crashing import try_out_unchecked

CRASH = {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}


def crashing(number: int) -> StructuredOutputsParams:
    return StructuredOutputsParams(json={**CRASH, "title": str(number)})


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library gets what is known to crash it: the process is begun with this."""
    monkeypatch.setattr(grammar, "try_out", try_out_unchecked)
    grammar._tried.cache_clear()
    confined.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="how it crashes there is not known")
@pytest.mark.usefixtures("unchecked")
def test_a_crash_is_one_line_of_one_schema() -> None:
    """Twice, and the others are compiled before and after; the same one costs no second process."""
    good = StructuredOutputsParams(json={"type": "object"})
    for number in range(2):
        prepared(good)
        with pytest.raises(UsageError) as error:
            prepared(crashing(number))
        assert str(error.value) == (
            "structured_outputs.json: compiling it ended the process that works it out "
            f"(exit code {-signal.SIGSEGV})"
        )
    prepared(StructuredOutputsParams(regex="[a-z]+"))
    prepared(good)


def test_a_known_fault_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar._tried.cache_clear()
    asked = crashing(3)
    with pytest.raises(UsageError) as first:
        prepared(asked)
    monkeypatch.setattr(confined, "call_for", None)
    with pytest.raises(UsageError) as second:
        prepared(asked)
    assert str(first.value) == str(second.value)


@pytest.mark.parametrize("how", ["loops", "swells", "panics", "is killed"])
def test_what_does_not_come_back(how: str, monkeypatch: pytest.MonkeyPatch, short: None) -> None:
    monkeypatch.setattr(grammar, "try_out", {
        "loops": _loop, "swells": _swell, "panics": _panic, "is killed": _die
    }[how])  # fmt: skip
    monkeypatch.setattr(grammar, "_SECONDS", 0.3)
    grammar._tried.cache_clear()
    with pytest.raises(UsageError, match=r"^structured_outputs.regex: compiling it (takes|ended)"):
        prepared(StructuredOutputsParams(regex=f"a{how}"))
    grammar._tried.cache_clear()


def _loop(params: Any) -> Any:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        pass


def _swell(params: Any) -> Any:
    return bytes(1 << 40)


class Panic(BaseException):
    """As PyO3 makes one of a panic: no Exception."""


def _panic(params: Any) -> Any:
    raise Panic


def _die(params: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
