"""Imports of workers that may not be needed: when they are begun, and that they are ended."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from sharegen.common.cores import available_cores
from sharegen.engine.parallel.bounds import VARIABLE
from sharegen.engine.parallel.copies import SERVER, ForkServer
from sharegen.engine.parallel.imports import has_cpu_alone
from sharegen.errors import UsageError
from sharegen.job import early_imports
from sharegen.job.early_imports import workers_imported_at_once, workers_imported_early


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[ForkServer]:
    """Processes that are begun, of a command that has not imported torch, on two cores alone."""
    found: list[ForkServer] = []
    monkeypatch.setattr(ForkServer, "begin", lambda server: found.append(server))
    monkeypatch.setattr(early_imports, "available_cores", lambda: 2)
    monkeypatch.setattr("sharegen.engine.parallel.imports._may_have_gpu", lambda: False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return found


@pytest.mark.parametrize(
    ("flags", "is_begun"),
    [
        ({}, True),
        ({"machine": {"workers": 2}, "dataset": {"limit": 3}}, True),
        ({"machine": {"workers": "auto"}}, True),
        ({"dataset": {"limit": 1000}}, True),
        ({"dataset": {"limit": 10}}, False),
        ({"machine": {"workers": 1}}, False),
        ({"machine": {"device": "cuda"}}, False),
        ({"machine": {"ray": "auto"}}, False),
        ({"machine": {"tensor_parallel_size": 2}}, False),
    ],
)
def test_they_are_begun_where_workers_on_this_cpu_are_likely(
    flags: dict[str, Any], is_begun: bool, begun: list[ForkServer]
) -> None:
    with workers_imported_early(flags):
        assert begun == [SERVER] * is_begun


@pytest.mark.parametrize(
    ("typed", "is_begun"),
    [
        ("run self-consistency", True),
        ("run prompts --dataset rows.jsonl -n 8 --model=./model", True),
        ("run self-consistency --limit 1000", False),  # begun once the command line has read it
        ("run self-consistency --limit=3", False),
        ("run self-consistency --set machine.workers=1", False),
        ("run self-consistency --device cuda", False),
        ("run self-consistency --help", False),
        ("run", True),
    ],
)
def test_they_are_begun_before_flags_are_read_where_no_flag_decides(
    typed: str, is_begun: bool, begun: list[ForkServer]
) -> None:
    with workers_imported_at_once(typed.split()):
        assert begun == [SERVER] * is_begun


@pytest.mark.skipif(
    available_cores() < 2 or not has_cpu_alone("auto"), reason="needs two cores and no GPU"
)
@pytest.mark.parametrize("seconds", ["soon", "-1"])
def test_what_keeps_them_from_beginning_is_told_in_one_line(seconds: str) -> None:
    """By the command, though the command line was not there yet when they were to begin."""
    command = [sys.executable, "-m", "sharegen", "run", "self-consistency"]
    environment = os.environ | {VARIABLE: seconds}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        f"sharegen: error: {VARIABLE} is {seconds!r}: give seconds, more than 0, or inf"
    ]


def test_they_are_not_begun_where_torch_is_here_or_on_one_core_or_beside_a_gpu(
    begun: list[ForkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for where, name, value in (
        (early_imports, "available_cores", lambda: 1),
        (sys.modules["sharegen.engine.parallel.imports"], "_may_have_gpu", lambda: True),
    ):
        with monkeypatch.context() as only:
            only.setattr(where, name, value)
            with workers_imported_early({}):
                assert not begun
    monkeypatch.setitem(sys.modules, "torch", sys)
    with workers_imported_early({}):
        assert not begun


def test_the_process_ends_with_a_command_that_is_wrong(
    begun: list[ForkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = []

    def begin(server: ForkServer) -> None:
        process = subprocess.Popen(["sleep", "60"])
        processes.append(process)
        server._process, server._line = process, _Line()  # type: ignore[assignment]

    monkeypatch.setattr(ForkServer, "begin", begin)
    with pytest.raises(UsageError), workers_imported_early({}):
        raise UsageError("no such recipe")
    assert [process.returncode for process in processes] == [-9]


class _Line:
    def close(self) -> None:
        pass
