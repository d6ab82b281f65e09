"""The engine of a job: in this process, or several, one a GPU or one a part of a CPU's cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sharegen.common.remarks import remark
from sharegen.errors import ModelError
from sharegen.workload.configuration import Configuration

if TYPE_CHECKING:
    from sharegen.engine.config import EngineConfig
    from sharegen.engine.engine import Engine
    from sharegen.engine.model.loaded import LoadedModel
    from sharegen.engine.parallel.driver import Driver

_LONG = (
    500_000  # tokens that a job may draw, from which a second engine on a CPU is worth its start
)


@dataclass(frozen=True)
class Staff:
    """How many engines a job gets: a number, or as many as pay on a CPU.

    apart: whether they are in processes of their own, which load the weights themselves.
    """

    count: int | None
    apart: bool

    @classmethod
    def of(cls, configuration: Configuration, problems: int) -> Staff:
        """problems: that the job asks, at most."""
        import torch

        from sharegen.engine.model.checkpoint import resolve_device
        from sharegen.engine.parallel.place import cores

        asked = configuration.machine.workers
        sampling = configuration.sampling
        if isinstance(asked, int):
            count = min(asked, max(1, problems * sampling.samples))
            if count < asked:
                remark(f"--workers {asked}: the job has {count} samples, and takes as many workers")
            return cls(count, apart=count > 1)
        if resolve_device(configuration.machine.device).type == "cuda":
            count = torch.cuda.device_count() if asked == "auto" else 1
            return cls(count, apart=count > 1)
        is_long = problems * sampling.samples * sampling.max_tokens >= _LONG
        if cores() > 1 and (asked == "auto" or is_long):
            return cls(None, apart=True)
        return cls(1, apart=False)


def start(
    staff: Staff,
    configuration: Configuration,
    config: EngineConfig,
    model: LoadedModel,
    tokenizer: Any,
) -> Engine | Driver:
    """The engines, ready to generate.

    model: with its weights, or without where the engines are apart.

    Raises ModelError where the model has changed since it was looked at.
    """
    if not staff.apart:
        from sharegen.engine.engine import Engine

        return Engine(model, tokenizer, config)
    from sharegen.engine.parallel.driver import Driver
    from sharegen.engine.parallel.messages import Setting
    from sharegen.engine.parallel.place import as_many_as_pay, places

    assert configuration.model is not None
    setting = Setting(
        configuration.model,
        tokenizer,
        config,
        device=configuration.machine.device,
        dtype=configuration.machine.dtype,
        adapter=configuration.adapter,
        trust_remote_code=configuration.trust_remote_code,
    )
    if staff.count is None:
        driver = as_many_as_pay(setting)
    else:
        driver = Driver(places(setting, staff.count))
    if driver.ready.fingerprint != model.fingerprint:
        driver.close()
        raise ModelError(f"{configuration.model} has changed while it was loaded: run again")
    return driver
