"""Many programs over several processes, and what happens when one of these dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import sharegen
from sharegen.common.cores import available_cores
from sharegen.common.import_path import SAFE_PATH
from sharegen.common.program_tests import CheckTests, ProgramProblem, ScriptTests
from sharegen.results.sandbox import cgroup
from sharegen.results.sandbox.host import SandboxError
from sharegen.results.sandbox.limits import Limits
from sharegen.results.sandbox.system import Isolation
from sharegen.results.scoring.workers import Task, score_all
from tests.results import sandboxes
from tests.traps import Traps

ADD = ProgramProblem(ScriptTests(["1\n"], ["2\n"]))
COMPLETIONS = [(n, f"print(int(input()) + {n % 2})") for n in range(21)]


@pytest.fixture(scope="module")
def isolation() -> Isolation:
    return sandboxes.isolation()


def _workers() -> list[psutil.Process]:
    """The processes that score for this one."""
    return [
        p
        for p in psutil.Process().children()
        if "sharegen.results.scoring.workers" in str(p.cmdline())
    ]


@pytest.mark.slow
@pytest.mark.turn(4)
@pytest.mark.parametrize("workers", [1, 3])
def test_every_program_is_scored_once(isolation: Isolation, workers: int) -> None:
    tasks = [Task("a", ADD, COMPLETIONS), Task("b", ADD, COMPLETIONS[:2]), Task("c", ADD, [])]
    scores = list(score_all(iter(tasks), isolation, Limits(), workers))
    assert sorted(key for key, _ in scores) == [
        *(("a", n) for n in range(21)),
        *(("b", n) for n in range(2)),
    ]
    assert all(score.passed == (sample % 2 == 1) for (_, sample), score in scores)
    assert not _workers()


@pytest.mark.turn(4)
def test_nothing_comes_from_the_current_folder(
    isolation: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in a worker, which knows what programs have to answer, nor in what it starts."""
    traps = Traps(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SAFE_PATH, raising=False)
    root = str(Path(sharegen.__file__).parents[1])
    monkeypatch.setattr(sys, "path", ["", *filter(None, sys.path), root])  # as a script has it
    checks = ProgramProblem(CheckTests(["assert f() == 1"], ["f"], ""))
    tasks = [
        Task("a", ADD, COMPLETIONS[:2]),
        Task("b", checks, [(0, "import json, queue, signal, socket\ndef f(): return 1")]),
        Task("c", checks, [(0, "def f(: 1")]),
    ]
    scores = dict(score_all(iter(tasks), isolation, Limits(), 2))
    assert [scores[key].result for key in sorted(scores)] == [
        *("wrong answer", "passed", "passed", "compile error")
    ]
    assert traps.sprung == []


def test_nothing_to_do_starts_nothing(isolation: Isolation) -> None:
    assert list(score_all(iter([]), isolation, Limits(), 4)) == []


def test_closing_early_ends_what_runs(isolation: Isolation) -> None:
    before = set(psutil.Process().children(recursive=True))
    slow = [(n, "print(2)" if n == 0 else "while True: pass") for n in range(8)]
    tasks = iter([Task("a", ADD, slow)])
    scores = score_all(tasks, isolation, Limits(cpu_seconds=60, wall_seconds=60), 2)
    assert next(scores)[1].passed
    started = time.monotonic()
    scores.close()
    time.sleep(0.2)
    assert time.monotonic() - started < 30
    left = set(psutil.Process().children(recursive=True)) - before
    assert not left


@pytest.mark.turn(4)
def test_no_cgroup_is_left(isolation: Isolation) -> None:
    group = cgroup.create()
    if group is None:
        pytest.skip("no memory cgroup can be had here")
    group.remove()
    checks = ProgramProblem(CheckTests(["assert f() == 1"], ["f"], ""))
    tasks = [Task("a", checks, [(n, "def f(): return 1") for n in range(9)])]
    scores = score_all(iter(tasks), isolation, Limits(), 2)
    assert next(scores)[1].passed
    theirs = tuple(f"sharegen-{worker.pid}-" for worker in _workers())
    groups = [path.name for path in group._path.parent.iterdir()]
    assert any(name.startswith(theirs) for name in groups)
    assert all(score.passed for _, score in scores)
    groups = [path.name for path in group._path.parent.iterdir()]
    assert not [name for name in groups if name.startswith(theirs)]


def test_a_dead_worker_is_one_line(isolation: Isolation) -> None:
    slow = [(n, "print(2)" if n == 0 else "while True: pass") for n in range(8)]
    scores = score_all(iter([Task("a", ADD, slow)]), isolation, Limits(), 1)
    next(scores)
    (worker,) = _workers()
    worker.kill()
    with pytest.raises(SandboxError, match="died"):
        list(scores)


def test_a_worker_without_a_sandbox_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match="bubblewrap: not installed"):
        list(score_all(iter([Task("a", ADD, COMPLETIONS)]), "bubblewrap", Limits(), 1))


def _cores_below(process: psutil.Process) -> Iterator[list[int]]:
    """Of all it has started, but for those that end while one looks."""
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            yield child.cpu_affinity() or []


def test_each_worker_stays_on_a_core_of_its_own(isolation: Isolation) -> None:
    slow = [(n, "print(2)" if n % 8 == 0 else "while True: pass") for n in range(16)]
    workers = min(2, available_cores())
    scores = score_all(iter([Task("a", ADD, slow)]), isolation, Limits(), workers)
    next(scores)
    crew = _workers()
    cores = set()
    for worker in crew:
        deadline = time.monotonic() + 20  # it may only be starting, and takes its core then
        while not (family := list(_cores_below(worker))) and time.monotonic() < deadline:
            time.sleep(0.05)
        own = worker.cpu_affinity()
        assert own is not None and len(own) == 1
        assert family and all(each == own for each in family)
        cores.update(own)
    assert len(cores) == workers
    scores.close()


@pytest.mark.slow
def test_a_killed_command_leaves_nothing_running(isolation: Isolation, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        '{"problem_id": 1, "question": "", "input_output": "{\\"inputs\\": [\\"\\"], '
        '\\"outputs\\": [\\"1\\"]}"}\n'
    )
    line = '{"task_id": 1, "completion": "while True: pass"}\n'
    (tmp_path / "samples.jsonl").write_text(line * 8)
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from sharegen.cli import main; main()"),
            *("score", "samples.jsonl", "--dataset", "rows.jsonl", "--execute"),
            *("--workers", "2", "--timeout", "60"),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    command = psutil.Process(process.pid)
    while not (is_busy := _busy(command)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert is_busy
    family = command.children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive


def _busy(command: psutil.Process) -> bool:
    """Whether a program of those that it scores has used a second, more than their parent needs."""
    for process in command.children(recursive=True):
        try:
            is_inside = process.uids().real != os.getuid() or len(process.parents()) > 5
            if is_inside and not process.children() and process.cpu_times().user > 1:
                return True
        except psutil.NoSuchProcess:
            continue
    return False


def test_available_cores_counts_what_we_may_use() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("uncovered")
@pytest.mark.turn(2)
def test_an_interrupted_command_keeps_its_verdicts(
    isolation: Isolation, number: signal.Signals, tmp_path: Path
) -> None:
    """From the terminal, Ctrl-C reaches every process of the command."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"problem_id": 1, "question": "", "input_output": "{\\"inputs\\": [\\"\\"], '
        '\\"outputs\\": [\\"1\\"]}"}\n'
    )
    samples = tmp_path / "samples.jsonl"
    line = '{"task_id": 1, "completion": "import time\\ntime.sleep(0.2)\\nprint(1)"}\n'
    samples.write_text(line * 12)
    command = [
        *(sys.executable, "-c", "import sys; from sharegen.cli import main; main(sys.argv[1:])"),
        *("score", "samples.jsonl", "--dataset", "rows.jsonl", "--execute", "--workers", "2"),
    ]
    scores = tmp_path / ".sharegen" / "samples.jsonl.scores.jsonl"
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (scores.exists() and scores.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    text = scores.read_text()
    assert 1 <= text.count("\n") < 12 and text.endswith("\n")
    deadline = time.monotonic() + 5
    while _of_session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _of_session(process.pid)
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert again.returncode == 0 and "100.0%" in again.stdout
    assert scores.read_text().startswith(text) and scores.read_text().count("\n") == 12


def _of_session(session: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found
