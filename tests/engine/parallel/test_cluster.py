"""Workers in a real Ray cluster of this machine, whose nodes come and go."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")

import ray
from ray.cluster_utils import Cluster as Nodes

from sharegen import LLM
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.model.load import load_model
from sharegen.engine.parallel import actor, cluster
from sharegen.engine.parallel.cluster import Cluster, ClusterError, start_workers
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.messages import Setting, WorkersError
from sharegen.errors import ModelError, UsageError
from tests.engine.parallel.test_driver import CONFIG, job, results
from tests.tiny import large_tokenizer, save_tiny_model
from tests.traps import Traps

# One cluster for all of them, whichever of pytest's processes has it.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

SMALL = {"object_store_memory": 75 << 20}
# Ray starts its workers 15 steps nicer than all else: beside other tests they would starve.
AS_OTHERS = {"_system_config": {"worker_niceness": 0}}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def client_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def nodes(client_port: int) -> Iterator[Nodes]:
    """A head that has no room for workers, and two nodes of one CPU each."""
    head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": client_port}
    started = Nodes(initialize_head=True, head_node_args=head | SMALL | AS_OTHERS)
    for _ in range(2):
        started.add_node(num_cpus=1, **SMALL)
    yield started
    ray.shutdown()  # where a test failed before it did
    started.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), context=256)
    large_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def setting(folder: Path) -> Setting:
    return Setting(str(folder), large_tokenizer(), CONFIG, device="cpu", threads=1)


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[tuple[int, int], tuple[object, ...]]:
    engine = Engine(load_model(folder, device="cpu"), load_tokenizer(folder), CONFIG)
    found = results(list(engine.generate(job(60))))
    engine.close()
    return found


def test_nodes_that_come_and_go(nodes: Nodes, setting: Setting, alone: object) -> None:
    """One is new and one is lost in mid-job; then the workers are killed, the last one too."""
    driver = start_workers(Cluster(nodes.address), setting, 2)
    driver.gather()
    driver.start_worker(setting)  # there is no room for it yet
    found = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for completion in driver.generate(job(60)):
            found.append(completion)
            if len(found) == 10:
                old = nodes.list_all_nodes()[-1]
                nodes.add_node(num_cpus=1, **SMALL)
                nodes.remove_node(old)
        assert results(found) == alone
        driver.gather()
        pids = driver.pids
        assert len(pids) == 2 and all(psutil.pid_exists(pid) for pid in pids)
        assert results(list(driver.generate(job(60)))) == alone
        stream = driver.generate(job(60))
        next(stream)
        os.kill(pids[0], signal.SIGKILL)
        assert len(list(stream)) == 60 * 4 - 1
    [lost, killed] = [str(warning.message) for warning in told]
    assert re.fullmatch(
        r"worker \d is gone: node [\d.]+: it left the cluster; the others go on", lost
    )
    assert "it was killed, perhaps for want of memory, or it crashed" in killed
    stream = driver.generate(job(60))
    next(stream)
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(WorkersError, match=r"the last worker is gone: node .*: it was killed"):
        list(stream)
    driver.close()


@pytest.mark.slow
@pytest.mark.turn(10)
def test_a_node_that_cannot_load_the_model(nodes: Nodes, setting: Setting, alone: object) -> None:
    """It is named, with the reason, and the job goes on with the others."""
    unable = [replace(setting, model="/nowhere"), replace(setting, fingerprint="another")]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        driver = Driver([setting, *unable], Cluster(nodes.address))
        driver.gather()
        assert results(list(driver.generate(job(60)))) == alone
        driver.close()
    said = sorted(
        (str(warning.message) for warning in told), key=lambda line: "nowhere" not in line
    )
    assert re.match(r"worker \d is gone: node [\d.]+: no folder /nowhere", said[0])
    assert re.match(r"worker \d is gone: node [\d.]+: .* is not the model that the job", said[1])


@pytest.mark.slow
@pytest.mark.turn(10)
def test_no_node_can_load_the_model(nodes: Nodes, setting: Setting) -> None:
    with (
        pytest.warns(UserWarning, match="the others go on"),
        pytest.raises(ModelError, match=r"node .*: no folder /nowhere"),
    ):
        start_workers(Cluster(nodes.address), replace(setting, model="/nowhere"), 2)


def test_nodes_of_another_version(
    nodes: Nodes, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor, "__version__", "99.0")
    with pytest.raises(WorkersError, match=r"node .*: it has sharegen .*, and this is 99\.0"):
        start_workers(Cluster(nodes.address), setting, 1)


def test_through_the_llm(
    nodes: Nodes, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many workers as fit, in a process that is in the cluster already or is not.

    Nobody imports from the current folder, of which Ray tells its workers by itself.
    """
    traps = Traps(tmp_path)
    monkeypatch.chdir(tmp_path)
    prompts = ["Question: Tom has 3 apples", "Question: A box holds 12 eggs"] * 3
    params = SamplingParams(n=3, max_tokens=9)
    texts = []
    for more in ({}, {"ray": nodes.address}):
        with LLM(folder, max_sequences=8, device="cpu", **more) as llm:
            outputs = llm.generate(prompts, params)
            texts.append([[sample.text for sample in output.outputs] for output in outputs])
            if more:
                assert isinstance(llm.engine, Driver)
                assert len(llm.engine.pids) == 2
    assert texts[0] == texts[1]
    assert traps.sprung == []


# -- whole jobs -------------------------------------------------------------------------------


def command(folder: Path, rows: Path, *more: object) -> list[str]:
    options = {"model": folder, "dataset": rows, "samples": 16, "max-tokens": 40}
    given = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
    own = ["--set", "machine.max_sequences=8", "--device", "cpu", "-q", *map(str, more)]
    return [sys.executable, "-m", "sharegen", "run", "prompts", *given, *own]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    prompts = [f"Question: Tom has {n % 4} apples and buys {n} more.\nAnswer:" for n in range(24)]
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


def samples(journal: Path) -> dict[tuple[str, int], Any]:
    """By key; every line is whole and every key there once."""
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    found = {(record["problem_id"], record["sample"]): record for record in records}
    assert len(found) == len(records)
    return found


def actors() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["name"]) if p.info["name"].startswith("ray::Actor")]


def wait_until(what: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def from_afar(words: list[str], has_begun: Any) -> subprocess.Popen[str]:
    """A driver that has begun to write.

    Beside other work Ray's client has been seen not to come up in minutes: as a user would, it is
    ended then and started again.
    """
    for _ in range(3):
        driver = subprocess.Popen(words, stdout=-1, stderr=-1, text=True)
        try:
            wait_until(has_begun, seconds=100)
        except AssertionError:
            driver.kill()
            print(driver.communicate())
        else:
            return driver
    raise AssertionError("the client never began")


@pytest.mark.usefixtures("uncovered")
@pytest.mark.slow
@pytest.mark.turn(10)
def test_a_job_whose_driver_dies(
    nodes: Nodes, client_port: int, folder: Path, rows: Path, tmp_path: Path
) -> None:
    """Killed once, terminated once, then finished by a client from afar; a worker dies, too."""
    one, many = tmp_path / "one.jsonl", tmp_path / "many.jsonl"
    subprocess.run(command(folder, rows, "-o", one, "--workers", 1), check=True)
    near = os.environ | {"RAY_ADDRESS": nodes.address}
    words = command(folder, rows, "-o", many, "--workers", 2, "--ray")
    sizes = [0]
    for ending, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)):
        driver = subprocess.Popen([*words, "auto"], env=near, stdout=-1, stderr=-1, text=True)
        wait_until(lambda: many.exists() and many.stat().st_size > sizes[-1])
        assert actors()
        driver.send_signal(ending)
        out, err = driver.communicate(timeout=20)
        assert driver.returncode == code and out == ""
        wait_until(lambda: not actors(), seconds=5)
        sizes.append(many.stat().st_size)
    assert err.startswith("sharegen: interrupted: what was finished is in ")
    far = f"ray://127.0.0.1:{client_port}"
    driver = from_afar([*words, far], lambda: many.stat().st_size > sizes[-1])
    actors()[0].kill()
    out, err = driver.communicate(timeout=100)
    assert driver.returncode == 0, err
    assert out == f"{many}\n"
    *waits, lost = err.splitlines()
    assert re.fullmatch(r"sharegen: worker \d is gone: node .*; the others go on", lost)
    assert all(line.startswith("sharegen: no worker has started yet: ") for line in waits)
    assert samples(many) == samples(one)


# -- addresses and room -----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_nobody_answers_at(scheme: str) -> None:
    began = time.monotonic()
    with pytest.raises(ClusterError, match="no cluster answers there"):
        Cluster(f"{scheme}127.0.0.1:{free_port()}")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("address", ["", "here", "http://127.0.0.1:8265", "ray://head"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Cluster(address)


@pytest.mark.parametrize(
    ("cpus", "workers", "each"),
    [([8, 8], 2, 8), ([8, 8], 3, 4), ([8, 2], 5, 2), ([1], 9, 1), ([], 1, 1), ([64], 1, 64)],
)
def test_cpus_are_divided_where_the_nodes_are(
    monkeypatch: pytest.MonkeyPatch, cpus: list[int], workers: int, each: int
) -> None:
    monkeypatch.setattr(cluster, "_nodes", lambda: [{"CPU": float(count)} for count in cpus])
    assert cluster._cpus_each(workers, 1) == each
    assert cluster._cpus_each(workers, 4) == max(each, 4)


def test_an_actor_that_is_stopped(
    nodes: Nodes, setting: Setting, alone: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told, and what it says when it wakes up counts no more."""
    monkeypatch.setenv("SHAREGEN_WORKER_TIMEOUT", "5")
    monkeypatch.setattr("sharegen.engine.parallel.bounds._START", 100)
    driver = start_workers(Cluster(nodes.address), setting, 2)
    driver.gather()
    stopped, found = driver.pids[0], []
    with pytest.warns(UserWarning, match="is gone: it gave no sign of life for 5 s"):
        for completion in driver.generate(job(60)):
            found.append(completion)
            if len(found) == 1:
                os.kill(stopped, signal.SIGSTOP)
            if len(found) == 239:
                os.kill(stopped, signal.SIGCONT)
    assert results(found) == alone
    driver.close()
