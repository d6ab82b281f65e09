"""A worker in a Ray cluster: the loop of every worker, in an actor, and the driver's end of it.

Messages are what they are between processes, carried by calls: one for each message to a worker,
and one that waits for what the worker says next. An actor belongs to the process that made it, and
ends with it, however that happens.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any, ClassVar

import ray
from ray.exceptions import RayError, RayTaskError

from sharegen.common.cores import available_cores
from sharegen.engine.parallel.line import Line
from sharegen.engine.parallel.messages import Failed, Setting
from sharegen.engine.parallel.place import share_of_memory
from sharegen.engine.parallel.worker import serve
from sharegen.errors import ModelError, SharegenError
from sharegen.version import __version__

_OVER = b""  # the last that a worker says


class Actor:
    """A worker somewhere; `hear` and `say` are the driver's end of its line.

    Ray runs each of the groups on a thread of its own.
    """

    groups: ClassVar = {"work": 1, "hear": 1, "say": 1}

    def __init__(self) -> None:
        self._line: Connection[Any, Any]
        self._line, self._theirs = Pipe()
        self._early: dict[int, bytes] = {}
        self._next = 0

    def where(self) -> tuple[str, int]:
        """The address of its node, and the process that it is there."""
        return ray.util.get_node_ip_address(), os.getpid()

    @ray.method(concurrency_group="work")
    def work(self, version: str, setting: bytes) -> None:
        """Serve the driver until it ends the actor; returns early where the worker fails.

        version: the driver's sharegen.

        Raises ModelError where sharegen is of another version here, and whatever breaks an engine.
        """
        try:
            if version != __version__:
                raise ModelError(
                    f"it has sharegen {__version__}, and this is {version}: install the same "
                    "version on every node"
                )
            line = Line(self._theirs)  # it reads from now on: a setting is longer than a pipe
            self._line.send(_own(pickle.loads(setting)))
            serve(line)
        finally:
            self._theirs.send_bytes(_OVER)

    @ray.method(concurrency_group="hear")
    def hear(self, number: int, message: bytes) -> None:
        """The driver's message of this number, from 0: calls may overtake each other."""
        self._early[number] = message
        while self._next in self._early:
            self._line.send_bytes(self._early.pop(self._next))
            self._next += 1

    @ray.method(concurrency_group="say")
    def say(self) -> list[bytes]:
        """What the worker has said since the last call; waits until that is something."""
        said = [self._line.recv_bytes()]
        while self._line.poll():
            said.append(self._line.recv_bytes())
        return said


def _own(setting: Setting) -> Setting:
    """Return the setting with this worker's part of its node."""
    node_id = ray.get_runtime_context().get_node_id()
    [node] = [node["Resources"] for node in ray.nodes() if node["NodeID"] == node_id]
    if setting.device == "cpu":
        return share_of_memory(setting, int(node["CPU"]) // setting.threads * setting.ranks)
    return replace(setting, threads=max(1, available_cores() * setting.ranks // int(node["GPU"])))


class Member:
    """A worker of the cluster; maybe it waits for its place."""

    def __init__(self, setting: Setting, memory: int, said: SimpleQueue[Any]) -> None:
        on_cpu = setting.device == "cpu"
        self._actor = ray.remote(
            num_gpus=0 if on_cpu else setting.ranks,
            num_cpus=setting.threads if on_cpu else 0,
            memory=memory,
            max_restarts=0,
            scheduling_strategy="SPREAD",
            concurrency_groups=Actor.groups,
        )(Actor).remote()
        self._said = said
        self._sent = 0
        self._fault: Exception | None = None
        self._where: Future[tuple[str, int]] = self._actor.where.remote().future()
        work = self._actor.work.remote(__version__, pickle.dumps(setting))
        self._work: Future[None] = work.future()
        self._ask()

    def _ask(self) -> None:
        """Have the next that it says put into the queue, when it comes."""
        _check_connected()
        reply = self._actor.say.remote().future()
        reply.add_done_callback(lambda done: self._said.put((self, done)))

    @property
    def place(self) -> tuple[str, int] | None:
        """The address of its node and its process there; None where it has not come so far."""
        if not self._where.done() or self._where.exception() is not None:
            return None
        return self._where.result()

    @property
    def pid(self) -> int:
        place = self.place
        return place[1] if place else 0

    def send(self, message: object) -> None:
        """Send it a message; raises ConnectionError where there is no way to it."""
        _check_connected()
        self._actor.hear.remote(self._sent, pickle.dumps(message))
        self._sent += 1

    def read(self, reply: Future[list[bytes]]) -> Iterator[object]:
        """The messages of a reply, and None behind the last one."""
        try:
            said = reply.result()
            if said[-1] != _OVER:
                self._ask()
        except (RayError, ConnectionError) as error:
            self._fault = error
            yield None
            return
        for message in said:
            yield None if message == _OVER else self._signed(pickle.loads(message))

    def _signed(self, message: object) -> object:
        """Why a worker fails, with the name of its node."""
        if isinstance(message, Failed):
            return Failed(type(message.error)(f"{self._node(True)}: {message.error}"))
        return message

    def _node(self, answers: bool) -> str:
        """The name of its node; one that answers soon says where it is."""
        if answers:
            with suppress(RayError, TimeoutError):
                self._where.result(timeout=5)
        if self.place is not None:
            return f"node {self.place[0]}"
        found = re.search(r"\bip: (\S+)", str(self._fault))  # of an actor that died as it began
        return f"node {found[1]}" if found else "a node"

    def why(self) -> str:
        """Say how a worker that no longer answers has ended."""
        if self._fault is None:
            try:
                self._work.result(timeout=5)
            except (RayError, ConnectionError) as error:
                self._fault = error
            except TimeoutError:
                return f"{self._node(False)}: it no longer answers"
        return f"{self._node(isinstance(self._fault, RayTaskError))}: {_words(self._fault)}"

    def end(self) -> None:
        with suppress(RayError, ConnectionError):
            _check_connected()
            ray.kill(self._actor)


def _check_connected() -> None:
    """Raise ConnectionError where the cluster is out of reach; a call would look for another."""
    if not ray.is_initialized():
        raise ConnectionError("the cluster is out of reach")


def _words(fault: BaseException | None) -> str:
    """Why a worker is gone, in one line of what Ray writes on a page."""
    if fault is None:
        return "it has ended"
    text = str(fault)
    if isinstance(fault, RayTaskError):
        cause = fault.cause
        kind = "" if isinstance(cause, SharegenError) else f"{type(cause).__name__}: "
        return f"{kind}{cause}"
    if "node has died" in text:
        return "it left the cluster"
    if "NODE_OUT_OF_MEMORY" in text:
        return "it was out of memory, and Ray ended the worker"
    if "worker process has died" in text:
        return "it was killed, perhaps for want of memory, or it crashed"
    last = (text.strip() or type(fault).__name__).splitlines()[-1].strip()
    if "failed to import" in text:
        return f"{last}: install sharegen {__version__} there"
    return last
