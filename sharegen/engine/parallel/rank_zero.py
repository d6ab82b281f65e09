"""An engine whose model is cut among ranks, of which this process is rank 0."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from sharegen.common.parameters.data import CheckpointParameters
from sharegen.common.parameters.machine import LoadParameters
from sharegen.common.parameters.parameter import values_of
from sharegen.engine.config import EngineConfig
from sharegen.engine.engine import Engine
from sharegen.engine.execute.process import using
from sharegen.engine.model.checkpoint.source import resolve_device
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel, on
from sharegen.engine.model.tensor_parallel.ranks import connect
from sharegen.engine.parallel.meeting import Meeting
from sharegen.engine.parallel.messages import Join, Setting
from sharegen.engine.parallel.tensor_parallel_workers import TensorParallelWorkers
from sharegen.errors import SharegenError, UsageError

Stuck = Callable[[SharegenError], None]


def engine_of(setting: Setting, *, stuck: Stuck | None = None, **options: Any) -> Engine:
    """The engine of a setting, with as many ranks as that says.

    stuck: see TensorParallelWorkers. options: of Engine.
    """
    load, tokenizer, config = _loading(setting), setting.tokenizer, setting.config
    if setting.ranks > 1:
        return engine_of_ranks(load, devices_of(setting), tokenizer, config, stuck=stuck, **options)
    model = load()
    try:
        return Engine(model, tokenizer, config, **options)
    except BaseException:
        if model is not setting.model:  # what is somebody's module is theirs again
            model.release()
        raise


def _loading(setting: Setting) -> Callable[..., LoadedModel]:
    """What makes the model, of the keyword `ranks` where it is cut."""
    if setting.load is not None:
        return partial(setting.load, device=resolve_device(setting.device))
    model = setting.model
    if isinstance(model, LoadedModel):
        return lambda: model
    return partial(
        load_model,
        model,
        **values_of(CheckpointParameters, setting),
        **values_of(LoadParameters, setting),
    )


def engine_of_ranks(
    load: Callable[..., LoadedModel],
    devices: Sequence[str],
    tokenizer: Any,
    config: EngineConfig,
    *,
    stuck: Stuck | None = None,
    **options: Any,
) -> Engine:
    """Rank 0's engine; the others are processes of this machine that end with it.

    load: makes the model of the keyword `ranks`, on every rank. devices: of each. options: of
    Engine. Raises what making it raises on any rank.
    """
    if torch.distributed.is_initialized():
        raise UsageError(
            "this process is one of several ranks already: close that engine first, or let workers "
            "have one each"
        )
    size, threads = len(devices), torch.get_num_threads()
    meeting = Meeting()
    address = meeting.address
    workers = TensorParallelWorkers(
        [
            Join(rank, size, address, device, load, tokenizer, config, threads)
            for rank, device in enumerate(devices)
            if rank
        ],
        meeting,
        stuck,
    )
    try:
        device = torch.device(devices[0])
        if device.type == "cuda":
            # A rank that is gone is for the workers to notice; torch would end this process.
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        ranks = workers.meet(partial(connect, 0, size, address, device))
        with workers.together(), on(device):
            with using(max(1, threads // size)):  # all ranks read at once
                model = load(ranks=ranks)
            return Engine(model, tokenizer, config, other_ranks=workers, **options)
    except BaseException:
        workers.end()
        workers.close()
        raise


def devices_of(setting: Setting) -> list[str]:
    """Return the device of each rank: its own GPU from the setting's on, or the CPU for all."""
    device = resolve_device(setting.device)
    if device.type == "cpu":
        return ["cpu"] * setting.ranks
    first = device.index or 0
    return [f"cuda:{first + rank}" for rank in range(setting.ranks)]
