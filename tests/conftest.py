"""What must be set before torch and Triton are imported, here and in processes that tests start."""

import gc
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from datetime import date

import pytest

from sharegen.common import confined

# What one process has compiled is there for all the others, whatever the environment says.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tiny models gain nothing from a second thread, and tests that run side by side (-n) lose by it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A full collection of garbage looks at the half a million objects of torch and of the tests
# themselves: not at all while the tests are only being collected, and less often than usual after.
gc.disable()
gc.set_threshold(*gc.get_threshold()[:2], 100)

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


SLOW_TURN = 3
"""A slow test runs on one day of so many, unless it is marked otherwise."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--turn",
        default="today",
        metavar="DAY",
        help="whose turn it is among the cases of tests marked `turn`: today's, a day's by its "
        "number, or all",
    )


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist chooses
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Processes take neighbouring tests, which use the same modules and fixtures."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    """One day for all processes of a run, midnight or not."""
    turn = config.getoption("--turn")
    today = date.today().toordinal()
    os.environ.setdefault("SHAREGEN_TEST_DAY", str(today) if turn == "today" else turn)
    if not getattr(config.option, "numprocesses", None) or config.option.collectonly:
        _prepare()  # a process that only deals tests out to others runs none


def _prepare() -> None:
    """Import what tests begin with, as they need it."""
    import torch
    from hypothesis import HealthCheck, settings

    if not torch.cuda.is_available():
        # The kernels run in Triton's interpreter, which is chosen at their import.
        os.environ["TRITON_INTERPRET"] = "1"

    # Where changes are judged the same inputs are drawn each time, so that a change fails by its
    # own doing; elsewhere other ones each time. No machine is slow enough to make a property wrong.
    settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("ci", settings.get_profile("here"), derandomize=True)
    settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases whose turn it is not.

    Of a test marked `turn(n)` each case runs on one day of n, known by its name; of a slow test
    that is not marked, on one of SLOW_TURN. n is at most 10: so every case runs within ten days.
    """
    day = os.environ["SHAREGEN_TEST_DAY"]
    if day == "all":
        return
    left_out = [item for item in items if not has_its_turn(item.nodeid, turn_of(item), int(day))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    """What the tests are made of is no garbage: a collection in a test need not look through it."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Or pytest and Python look through all that is there as they end, six times, a second each."""
    gc.freeze()


def turn_of(item: pytest.Item) -> int:
    """Days in which each case of a test runs once."""
    mark = item.get_closest_marker("turn")
    if mark is not None:
        [days] = mark.args
        assert 1 <= days <= 10, f"{item.nodeid}: every case runs within ten days"
        return int(days)
    return SLOW_TURN if item.get_closest_marker("slow") is not None else 1


def has_its_turn(name: str, days: int, day: int) -> bool:
    """Whether a case runs on a day, given by its number, when it runs on one of so many."""
    return (zlib.crc32(name.encode()) + day) % days == 0


@pytest.fixture
def uncovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage measures no process that the test starts.

    For processes that hear a signal: an exception that it raises while coverage holds its lock
    leaves that locked, and all threads wait for it for ever.
    """
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


@pytest.fixture
def brief_collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Collections look at what the test makes alone, whatever engines freeze and thaw.

    For tests that ask for many: beside all that was imported before, each would take a second.
    """
    gc.freeze()
    with monkeypatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: None)
        patch.setattr(gc, "unfreeze", lambda: None)
        yield
    gc.unfreeze()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Less time and memory for what strangers' templates and patterns compute."""
    monkeypatch.setattr(confined, "SECONDS", 0.3)
    monkeypatch.setattr(confined, "MEMORY", 2**28)
    monkeypatch.setattr(confined, "_PATIENCE", 200)  # however busy the machine is
    confined.stop()
    yield
    confined.stop()
