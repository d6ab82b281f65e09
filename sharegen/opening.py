"""What an LLM is made of, from what its arguments name: a tokenizer, and one engine or several."""

from __future__ import annotations

import os
from numbers import Integral
from typing import TYPE_CHECKING, Any

from sharegen.engine.config import EngineConfig
from sharegen.engine.engine import Engine
from sharegen.engine.model.checkpoint.source import load_tokenizer
from sharegen.engine.model.load import load_model
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.lead import engine_of
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.place import places
from sharegen.errors import ModelError, UsageError

if TYPE_CHECKING:
    from torch import nn


def open_tokenizer(
    model: str | os.PathLike[str] | nn.Module,
    tokenizer: Any,
    trust_remote_code: bool,
    revision: str | None,
) -> Any:
    """The one that is given, or the model's own, where it has one."""
    if tokenizer is not None:
        if isinstance(tokenizer, (str, os.PathLike)):
            own = tokenizer == model
            return load_tokenizer(tokenizer, trust_remote_code, revision if own else None)
        return tokenizer
    if not isinstance(model, (str, os.PathLike)):
        return None
    try:
        return load_tokenizer(model, trust_remote_code, revision)
    except ModelError:
        return None  # prompts of token ids need none; others say that it is missing


def open_engine(
    model: str | os.PathLike[str] | nn.Module,
    tokenizer: Any,
    config: EngineConfig,
    ranks: int,
    workers: int | None,
    ray: str | None,
    options: dict[str, Any],
) -> Engine | Driver:
    """An engine of this process, or workers. options: of `load_model`.

    Raises UsageError for a loaded model that other processes would need, and for numbers that are
    none.
    """
    for name, value in (("workers", workers), ("tensor_parallel_size", ranks)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise UsageError(f"{name} is {value!r}: it must be a whole number")
    if ray is None and workers is None:
        workers = 1
    own = ray is None and workers == 1  # an engine in this process
    if own and ranks == 1:
        return Engine(load_model(model, **options), tokenizer, config)
    if not isinstance(model, (str, os.PathLike)):
        who = "ranks" if own else "workers"
        raise UsageError(f"{who} load the model themselves: give its folder or hub id")
    setting = Setting(os.fspath(model), tokenizer, config, ranks=ranks, **options)
    if own:
        return engine_of(*places(setting, 1))
    if ray is None:
        assert workers is not None
        return Driver(places(setting, workers))
    from sharegen.engine.parallel.cluster import Cluster, staffed

    return staffed(Cluster(ray), setting, workers)
