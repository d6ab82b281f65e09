"""The one way to an engine, for whoever needs it: in this process, or apart as workers."""

from __future__ import annotations

import os
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, overload

from sharegen.engine.model.checkpoint.source import resolve_device
from sharegen.engine.parallel.dispatcher import Dispatcher
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.launch import Processes
from sharegen.engine.parallel.place import as_many_as_pay, places, room
from sharegen.errors import UsageError

if TYPE_CHECKING:
    from sharegen.engine.cache.prefix_tree import PrefixTree
    from sharegen.engine.engine import Engine
    from sharegen.engine.parallel.cluster import Cluster
    from sharegen.engine.parallel.copies import ForkServer
    from sharegen.engine.parallel.messages import Setting


@overload
def open_engine(setting: Setting, *, tree: PrefixTree | None = ..., costs: Any = ...) -> Engine: ...


@overload
def open_engine(
    setting: Setting,
    workers: int | Literal["auto"] | None,
    *,
    apart: bool = ...,
    ray: Cluster | str | None = ...,
    server: ForkServer | None = ...,
) -> Engine | Driver: ...


def open_engine(
    setting: Setting,
    workers: int | Literal["auto"] | None = 1,
    *,
    apart: bool = False,
    ray: Cluster | str | None = None,
    server: ForkServer | None = None,
    tree: PrefixTree | None = None,
    costs: Any = None,
) -> Engine | Driver:
    """Open the engine of a setting, or the driver of several engines that share its requests.

    Args:
        workers: how many engines; "auto" for as many as there is room for; None for as many as pay
            on this machine's CPU, or as fit in the cluster.
        apart: whether a single engine, too, runs in a process of its own.
        ray: the cluster that the workers run in, or its address.
        server: the process that workers on a CPU are copies of, where it runs already.
        tree, costs: as for `Engine`, for one in this process.

    Raises:
        UsageError: for numbers that are none, for more workers than there is room for, and for a
            loaded model that other processes would need. A model that does not load, or does not
            fit, raises what `load_model` and `Engine` raise.
    """
    if workers == "auto":
        workers = room(resolve_device(setting.device), setting.ranks) if ray is None else None
    _check_numbers(workers, setting.ranks)
    is_here = ray is None and workers == 1 and not apart
    if is_here and setting.ranks == 1:
        return _engine_here(setting, tree=tree, costs=costs)
    if setting.load is None:
        if not isinstance(setting.model, (str, os.PathLike)):
            who = "ranks" if is_here else "workers"
            raise UsageError(f"{who} load the model themselves: give its folder or hub id")
        setting = replace(setting, model=os.fspath(setting.model))
    if is_here:
        return _engine_here(*places(setting, 1), tree=tree, costs=costs)
    assert tree is None and costs is None, "engines in other processes take none"
    if ray is not None:
        from sharegen.engine.parallel.cluster import Cluster, start_workers

        return start_workers(Cluster(ray) if isinstance(ray, str) else ray, setting, workers)
    if workers is None:
        return as_many_as_pay(setting, Driver, Processes(server=server))
    return Driver(places(setting, workers), Processes(server=server))


def open_dispatcher(
    setting: Setting, workers: int | Literal["auto"], server: ForkServer
) -> Dispatcher:
    """Open the engines that a server's requests go to, each in a process of its own.

    Args:
        workers: how many; "auto" for as many as there is room for, or as pay on a CPU.
        server: the process that workers on a CPU are copies of.

    Raises what `open_engine` raises.
    """
    count = room(resolve_device(setting.device), setting.ranks) if workers == "auto" else workers
    _check_numbers(count, setting.ranks)
    if count is None:
        return as_many_as_pay(setting, Dispatcher, Processes(server=server))
    return Dispatcher(places(setting, count), Processes(server=server))


def _engine_here(setting: Setting, **options: Any) -> Engine:
    """Make it. What an engine imports no driver of workers needs: a tenth of its imports."""
    from sharegen.engine.parallel.rank_zero import engine_of

    return engine_of(setting, **options)


def _check_numbers(workers: object, ranks: object) -> None:
    for name, value in (("workers", workers), ("tensor_parallel_size", ranks)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise UsageError(f"{name} is {value!r}: it must be a whole number")
