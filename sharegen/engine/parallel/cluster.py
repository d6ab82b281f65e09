"""Workers in a Ray cluster, which places them where there is room."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from sharegen.common.extras import install
from sharegen.errors import SharegenError, UsageError

try:
    import grpc
    import ray
    from ray.job_config import JobConfig
except ModuleNotFoundError:
    raise UsageError(f"Ray is not installed: {install('ray')}") from None

from sharegen.engine.parallel.actor import Member
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.liveness import LISTEN_SECONDS
from sharegen.engine.parallel.messages import Setting

_ADDRESS = re.compile(r"(?:ray://)?((?:\[[^\]]+\]|[^\s:/]+):\d+)")
_ANSWER_SECONDS = 5  # in which a cluster that is there answers
_START_SECONDS = 30  # in which a worker starts that has a place


class ClusterError(SharegenError):
    """There is no cluster, or it does not go together with this process."""


class Cluster:
    """The workers of a Ray cluster, to which this process is connected until it is closed.

    address: auto, HOST:PORT or ray://HOST:PORT. A process that is connected already, as by a Ray
    program of its own, stays so.

    Raises UsageError for what is no address, and ClusterError where no cluster answers.
    """

    def __init__(self, address: str) -> None:
        self._is_guest = ray.is_initialized()
        if not self._is_guest:
            _connect(address)
        elif address not in ("auto", ray.get_runtime_context().gcs_address):
            raise UsageError(f"this process has a Ray cluster already, and {address} is another")
        self._said: SimpleQueue[tuple[Member, Future[list[bytes]]]] = SimpleQueue()
        self._members: dict[Member, None] = {}
        self._heard = time.monotonic()  # when a worker said something, or was asked for
        self._is_waiting = False  # for room, which has been told
        self.memory = 0  # bytes that every worker is to find

    # -- what there is ------------------------------------------------------------------------

    def device_of(self, asked: str) -> str:
        """What its workers compute on; "auto" is cuda where the cluster has a GPU.

        Raises UsageError for a device that Ray does not deal out.
        """
        if asked not in ("auto", "cpu", "cuda"):
            raise UsageError(f"device {asked}: Ray chooses the GPU: give auto, cpu or cuda")
        has_gpu = any(node.get("GPU") for node in _nodes())
        return asked if asked != "auto" else "cuda" if has_gpu else "cpu"

    def room(self, resource: str, each: int) -> int:
        """Workers that fit in it, empty, if each takes so much of a resource."""
        return sum(
            min(int(node.get(resource, 0) // each), self._fitting(node)) for node in _nodes()
        )

    def _fitting(self, node: dict[str, float]) -> int:
        return int(node.get("memory", 0) // self.memory) if self.memory else sys.maxsize

    # -- a workplace --------------------------------------------------------------------------

    def start(self, setting: Setting) -> Member:
        member = Member(setting, self.memory, self._said)
        self._heard = time.monotonic()
        self._members[member] = None
        return member

    def listen(self) -> Iterator[tuple[Member, object]]:
        """What one worker says; None of one that is gone, and nothing where all are silent."""
        try:
            member, reply = self._said.get(timeout=LISTEN_SECONDS)
        except Empty:
            if time.monotonic() - self._heard > _START_SECONDS:
                self._warn_waiting()
            return
        self._heard = time.monotonic()
        if member not in self._members:
            return
        for message in member.read(reply):
            yield member, message
            if member not in self._members:  # it was ended over this message
                return

    def _warn_waiting(self) -> None:
        """Warn once that no worker has a place."""
        waiting = not any(member.place for member in self._members)
        if waiting and not self._is_waiting:
            warnings.warn(
                "no worker has started yet: the cluster may have no room for one: the job waits",
                stacklevel=2,
            )
        self._is_waiting = waiting

    def end(self, member: Member) -> None:
        self._members.pop(member, None)
        member.end()

    def close(self) -> None:
        """Leave the cluster."""
        if not self._is_guest:
            ray.shutdown()


def _options(address: str) -> dict[str, JobConfig]:
    """What keeps workers from importing from the current folder before anything else.

    A client's server does that by itself, and a client cannot send it.
    """
    return {} if address.startswith("ray://") else {"job_config": JobConfig(_client_job=True)}


def _connect(address: str) -> None:
    given = _ADDRESS.fullmatch(address)
    if address != "auto" and given is None:
        raise UsageError(f"ray {address}: give auto, HOST:PORT or ray://HOST:PORT")
    given = given or _ADDRESS.fullmatch(os.environ.get("RAY_ADDRESS", ""))
    if given is not None and os.environ.get("RAY_USE_TLS", "0") == "0":
        _ask_whether_there(given[0], given[1])
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **_options(address if given is None else given[0]),
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        text = str(error)
        if given is None and isinstance(error, ConnectionError):
            raise ClusterError(
                "ray auto: no cluster runs on this machine: start one, or give its HOST:PORT"
            ) from None
        said = text.strip().splitlines()[-1] if "Traceback" in text else text  # of the server's
        raise ClusterError(f"ray {address}: {said}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray ends the process at once
    # What its nodes report comes on standard output, which is for data, whatever log_to_driver is.
    sys.modules["ray._private.worker"].print_to_stdstream = lambda *_, **__: None  # type: ignore[attr-defined]


def _ask_whether_there(address: str, target: str) -> None:
    """Raise ClusterError where nobody answers: Ray itself tries for two minutes."""
    channel = grpc.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)])
    try:
        grpc.channel_ready_future(channel).result(timeout=_ANSWER_SECONDS)
    except grpc.FutureTimeoutError:
        raise ClusterError(
            f"ray {address}: no cluster answers there: check the address, and that it runs"
        ) from None
    finally:
        channel.close()


def _nodes() -> list[dict[str, float]]:
    """What each node of the cluster has in all."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def start_workers(cluster: Cluster, setting: Setting, workers: int | None) -> Driver:
    """The driver of so many workers in the cluster; None: as many as it has GPUs, or as fit.

    Those for which there is no room wait for it, while the others work.

    Raises UsageError for a device that Ray does not deal out or that the cluster has not, and what
    making an engine raises where no worker can.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"{workers} workers: there must be at least 1")
    setting = replace(
        setting,
        model=_absolute(setting.model),
        adapter=_absolute(setting.adapter),
        device=cluster.device_of(setting.device),
    )
    if setting.device == "cuda":
        room = cluster.room("GPU", setting.ranks)
        if workers is None and not room:
            gpus = "a GPU" if setting.ranks == 1 else f"{setting.ranks} GPUs"
            raise UsageError(
                f"no node of the cluster has {gpus}: say how many workers are to wait for one"
            )
        return _driver(cluster, setting, workers or room, room)
    if workers is not None:
        cpus = _cpus_each(workers, setting.ranks)
        room = cluster.room("CPU", cpus)
        return _driver(cluster, replace(setting, threads=cpus), workers, room)
    setting = replace(setting, threads=setting.ranks)
    driver = Driver([setting], cluster)
    cluster.memory = 2 * driver.ready.resident
    for _ in range(cluster.room("CPU", setting.ranks) - 1):
        driver.start_worker(setting)
    return driver


def _absolute(source: Any) -> Any:
    """The path of a folder from anywhere; a hub id as it is."""
    is_folder = isinstance(source, str) and os.path.isdir(source)
    return os.path.abspath(source) if is_folder else source


def _driver(cluster: Cluster, setting: Setting, workers: int, room: int) -> Driver:
    if room < workers:
        warnings.warn(
            f"the cluster has room for {room} of {workers} workers: the others join when it grows",
            stacklevel=2,
        )
    return Driver([setting] * workers, cluster)


def _cpus_each(workers: int, least: int) -> int:
    """The most CPUs that so many workers can have each; `least` where there are fewer."""
    cpus = [int(node.get("CPU", 0)) for node in _nodes()]
    shares = range(least, max(cpus, default=0) + 1)
    return max((s for s in shares if sum(n // s for n in cpus) >= workers), default=least)
