"""Processes that run before they are told what for."""

import pytest

from sharegen.engine.parallel.early import EARLY, EarlyProcesses
from sharegen.engine.parallel.launch import EngineProcess

_MODULE = "tests.engine.parallel.forked"


@pytest.fixture
def early():
    found = EarlyProcesses()
    yield found
    found.close()


def test_each_is_taken_once_and_the_rest_are_ended(early):
    early.begin("tests.engine.parallel.busy", 2)
    connection, process = early.take("tests.engine.parallel.busy")
    assert early.take("another") is None
    [(_, left)] = early._waiting["tests.engine.parallel.busy"]
    early.close()
    assert left.poll() is not None and process.poll() is None
    assert early.take("tests.engine.parallel.busy") is None
    process.kill()
    process.wait(30)
    connection.close()


def test_a_worker_is_one_that_runs_already(monkeypatch):
    EARLY.begin("tests.engine.parallel.echo", 1)
    [(_, process)] = EARLY._waiting["tests.engine.parallel.echo"]
    worker = EngineProcess("a setting", "tests.engine.parallel.echo")  # type: ignore[arg-type]
    try:
        assert worker.pid == process.pid
        assert worker.connection.poll(30) and worker.connection.recv() == "a setting"
    finally:
        worker.end()
        EARLY.close()
