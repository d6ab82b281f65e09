"""Workers on a CPU as copies of one process: their ends are told, and nothing is left of them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest

import sharegen
from sharegen.engine.config import EngineConfig
from sharegen.engine.parallel.ahead import ModelAhead
from sharegen.engine.parallel.copies import ForkServer
from sharegen.engine.parallel.launch import EngineProcess, Processes
from sharegen.engine.parallel.messages import Alive, Failed, Ready, Setting
from sharegen.errors import ModelError, SharegenError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are Linux's")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with closing(ForkServer()) as server:
        server.begin()
        yield server


def setting(model: Path) -> Setting:
    return Setting(str(model), None, None, device="cpu")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_copy_is_a_worker_whose_end_is_told(server: ForkServer, tmp_path: Path) -> None:
    """What it cannot do comes as an error, and then its silence."""
    worker = EngineProcess(setting(tmp_path / "nowhere"), server=server)
    failed = _said(worker.connection)
    assert isinstance(failed, Failed) and "nowhere" in str(failed.error)
    with pytest.raises(EOFError):
        _said(worker.connection)
    assert worker.why() == "it ended with code 0"
    worker.end()
    assert not psutil.pid_exists(worker.pid)


@pytest.mark.slow
def test_one_that_is_killed(server: ForkServer) -> None:
    one, other = (_waiting(server) for _ in range(2))
    os.kill(one[0].pid, signal.SIGKILL)
    with pytest.raises(EOFError):  # though the other was begun while its connection was open
        _said(one[1])
    assert one[0].wait() == -signal.SIGKILL
    one[0].kill()  # nothing: the number may be another's by now
    assert psutil.Process(other[0].pid).status() != psutil.STATUS_ZOMBIE
    other[0].kill()
    assert other[0].wait() == -signal.SIGKILL


@pytest.mark.slow
def test_copies_end_with_who_speaks_to_them(server: ForkServer) -> None:
    copy, ours = _waiting(server)
    ours.close()
    assert copy.wait() == 0


@pytest.mark.slow
def test_workers_of_one_place_are_copies_of_one_process(tmp_path: Path) -> None:
    with closing(Processes()) as place:
        workers = [place.start(setting(tmp_path / "nowhere")) for _ in range(2)]
        parents = {psutil.Process(worker.pid).ppid() for worker in workers}
        assert len(parents) == 1 and os.getpid() not in parents
        assert psutil.Process(*parents).ppid() == os.getpid()
        for worker in workers:
            place.end(worker)
    assert not any(map(psutil.pid_exists, parents))


@pytest.mark.slow
def test_the_process_is_gone(tmp_path: Path) -> None:
    """Its copies go on, and are ended like others; how is not known any more."""
    with closing(ForkServer()) as server:
        worker = EngineProcess(setting(tmp_path / "nowhere"), server=server)
        assert server._process is not None
        server._process.kill()
        server._process.wait()
        with pytest.raises(SharegenError, match="no worker can be started"):
            server.copy(Pipe()[1])
        assert isinstance(_said(worker.connection), Failed)
        assert worker.why() == "it no longer answers"
        worker.end()
    server.close()  # twice does nothing


@pytest.mark.slow
def test_the_process_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks it for a copy is told, and it is ended."""
    monkeypatch.setenv("SHAREGEN_WORKER_TIMEOUT", "0.1")
    with closing(ForkServer()) as server:
        server.begin()
        assert server._process is not None
        pid = server._process.pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(SharegenError, match="that workers are copied from does not answer"):
            server.copy(Pipe()[1])
        assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_what_is_wrong_with_a_model_is_told(server: ForkServer, tmp_path: Path) -> None:
    server.load(ModelAhead(model=str(tmp_path / "nowhere")))
    with pytest.raises(ModelError, match="nowhere"):
        server.outline()


@pytest.mark.slow
def test_copies_have_a_model_that_was_loaded_before(tmp_path: Path) -> None:
    """It is read once; whoever finds its folder changed, or damaged before, is told as ever."""
    folder = tmp_path / "model"
    shutil.copytree(Path(sharegen.__path__[0]) / "recipes" / "tinymath" / "model", folder)
    asked = ModelAhead(model=str(folder), device="auto")
    config = EngineConfig(kv_cache_memory=16 << 20, max_sequences=4)
    with closing(ForkServer()) as server:
        server.begin()
        server.load(asked)
        pair = Pipe()
        waiting = server.copy(pair[1])  # by now it is loaded
        pair[1].close()
        (folder / "model.safetensors").write_bytes(b"damaged")
        pair[0].send(Setting(str(folder), None, config, threads=1, device="cpu"))
        ready = _said(pair[0])
        assert isinstance(ready, Ready)
        outline = server.outline()
        assert outline is not None
        assert (outline.fingerprint, outline.dtype, outline.context_length) == (
            ready.fingerprint, ready.dtype, ready.context_length,
        )  # fmt: skip
        waiting.kill()
        waiting.wait()
        other = Setting(str(folder), None, config, threads=1, device="cpu", fingerprint="other")
        worker = EngineProcess(other, server=server)
        failed = _said(worker.connection)
        assert isinstance(failed, Failed)
        assert f"{folder} is not the model that the job was begun with" in str(failed.error)
        worker.end()
    with closing(ForkServer()) as server:
        server.begin()
        server.load(asked)
        worker = EngineProcess(Setting(str(folder), None, config, device="cpu"), server=server)
        failed = _said(worker.connection)
        assert isinstance(failed, Failed) and "cannot load the weights" in str(failed.error)
        worker.end()


def _said(connection: Connection[Any, Any]) -> object:
    """The next that a worker says besides that it lives."""
    while isinstance(message := connection.recv(), Alive):
        pass
    return message


def _waiting(server: ForkServer) -> tuple[Any, Connection[Any, Any]]:
    """A copy that waits for its first message, and who speaks to it."""
    ours, theirs = Pipe()
    with theirs:
        copy = server.copy(theirs)
    until = time.monotonic() + 5
    while psutil.Process(copy.pid).status() != psutil.STATUS_SLEEPING:
        assert time.monotonic() < until
        time.sleep(0.01)
    return copy, ours
