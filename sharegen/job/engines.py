"""The engines of a job: one in this process, or workers on this machine or in a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from sharegen.common.cores import available_cores
from sharegen.common.log import log
from sharegen.common.parameters.data import CheckpointParameters
from sharegen.common.parameters.machine import LoadParameters
from sharegen.common.parameters.parameter import values_of
from sharegen.engine.parallel.ahead import ModelAhead
from sharegen.engine.parallel.copies import SERVER, ForkServer
from sharegen.engine.parallel.early import EARLY, WORKER
from sharegen.engine.parallel.outline import CPU, ModelOutline
from sharegen.errors import UsageError
from sharegen.job.imports import import_engine, on_cpu
from sharegen.workload.configuration import Configuration
from sharegen.workload.sampling_section import Sampling

if TYPE_CHECKING:
    import torch

    from sharegen.engine.config import EngineConfig
    from sharegen.engine.core.request import BeamSearchParams, SamplingParams
    from sharegen.engine.engine import Engine
    from sharegen.engine.model.loaded import LoadedModel
    from sharegen.engine.parallel.cluster import Cluster
    from sharegen.engine.parallel.driver import Driver
    from sharegen.engine.parallel.messages import Setting

_LONG = (
    500_000  # tokens that a job may draw, from which a second engine on a CPU is worth its start
)
_UNBOUNDED = 256  # tokens of a sample that only the context bounds, about


@dataclass(frozen=True)
class EngineSpec:
    """How many engines a job gets: a number, or as many as pay on a CPU, or fit in a cluster.

    apart: whether they are in processes of their own, which load the weights themselves. device:
    what they compute on. cluster: where they are, if not on this machine. ranks: that the model of
    each is cut among.
    """

    count: int | None
    apart: bool
    device: torch.device
    cluster: Cluster | None = None
    ranks: int = 1

    @classmethod
    def of(
        cls, configuration: Configuration, samplings: Sequence[Sampling], are_copies: bool = False
    ) -> EngineSpec:
        """The engines that the configuration asks for.

        samplings: how each problem that the job asks, at most, is sampled. are_copies: whether it
        is known that they are copies on this machine's CPU: then torch is not imported.
        """
        if not are_copies:
            import_engine(configuration)
        import torch

        from sharegen.engine.model.checkpoint.source import resolve_device
        from sharegen.engine.parallel.place import room

        machine = configuration.machine
        asked, ranks = machine.workers, machine.tensor_parallel_size
        if isinstance(asked, int):
            count = workers_of(configuration, samplings)
            if count < asked:
                log(f"--workers {asked}: the job has {count} samples, and takes as many workers")
            asked = count
        if machine.ray is not None:
            from sharegen.engine.parallel.cluster import Cluster

            cluster = Cluster(machine.ray)
            device = torch.device(cluster.device_of(machine.device))
            return cls(asked if isinstance(asked, int) else None, True, device, cluster, ranks)
        device = CPU if are_copies else resolve_device(machine.device)
        if isinstance(asked, int):
            return cls(asked, asked > 1 or ranks > 1, device, ranks=ranks)
        if device.type == "cuda" or ranks > 1:
            found = room(device, ranks) if asked == "auto" else 1
            return cls(found, found != 1 or ranks > 1, device, ranks=ranks)
        return cls(None, True, device) if _pays(asked, samplings) else cls(1, False, device)

    def check_verifiable(self, configuration: Configuration) -> None:
        """Raise UsageError where this machine cannot compute the engines' steps again."""
        from sharegen.engine.model.checkpoint.source import resolve_device

        here = resolve_device(configuration.machine.device).type
        if here != self.device.type:
            raise UsageError(
                f"--verify computes steps again on this machine, which has {here}, and the cluster "
                f"draws with {self.device.type}: leave it out, or run where they are alike"
            )


def _pays(asked: int | Literal["auto"] | None, samplings: Sequence[Sampling]) -> bool:
    """Whether workers that share a CPU are asked for, or worth their start."""
    if isinstance(asked, int):
        return asked > 1
    is_long = sum(sampling.problem_tokens(_UNBOUNDED) for sampling in samplings) >= _LONG
    return available_cores() > 1 and (asked == "auto" or is_long)


def workers_of(configuration: Configuration, samplings: Sequence[Sampling]) -> int:
    """The workers that are asked for, no more than there are samples; 1 where it is left open."""
    asked = configuration.machine.workers
    samples = max(1, sum(sampling.samples for sampling in samplings))
    return min(asked, samples) if isinstance(asked, int) else 1


@contextmanager
def begun_early(
    configuration: Configuration, samplings: Sequence[Sampling]
) -> Iterator[ForkServer]:
    """Stand around a job whose engines' processes import what they run as the job's own does.

    Neither waits for the other then. Gives the process that workers on a CPU are forked from. Other
    processes are begun where it is known how many there will be. samplings: of the problems that
    the job asks, at most.
    """
    machine = configuration.machine
    ranks = machine.tensor_parallel_size
    here = machine.ray is None
    with closing(SERVER) as server, closing(EARLY):
        is_copied = here and ranks == 1 and on_cpu(configuration)
        if is_copied and _pays(machine.workers, samplings):
            server.begin()
            _load_ahead(server, configuration)
        else:
            server.close()  # it may have been begun before that was known
        if here and not is_copied and machine.workers != "auto":
            count = workers_of(configuration, samplings)
            if count > 1 or ranks > 1:
                EARLY.begin(WORKER, count, ranks)
        yield server


def _load_ahead(server: ForkServer, configuration: Configuration) -> None:
    """Let the process that workers are copied from load a model that lies on this machine.

    One with code of its own is loaded by the driver first, which takes its code over.
    """
    model = configuration.model
    if model is None or configuration.trust_remote_code or not os.path.exists(model):
        return
    server.load(
        ModelAhead(
            model=model,
            **values_of(CheckpointParameters, configuration),
            **values_of(LoadParameters, configuration.machine),
            kv_cache_dtype=configuration.machine.kv_cache_dtype,
        )
    )


def setting_of(configuration: Configuration, tokenizer: Any, config: EngineConfig) -> Setting:
    """All that an engine of the configuration's model is made from."""
    from sharegen.engine.parallel.messages import Setting

    assert configuration.model is not None
    return Setting(
        configuration.model,
        tokenizer,
        config,
        **values_of(CheckpointParameters, configuration),
        **values_of(LoadParameters, configuration.machine),
        ranks=configuration.machine.tensor_parallel_size,
    )


def start(
    spec: EngineSpec,
    configuration: Configuration,
    config: EngineConfig,
    model: LoadedModel | ModelOutline,
    tokenizer: Any,
    server: ForkServer | None = None,
) -> Engine | Driver:
    """The engines, ready to generate.

    model: with its weights, or without where the engines are apart, or what is told of it then.
    server: what workers on a CPU are copies of, where it runs already.
    """
    from sharegen.engine.parallel.opening import open_engine

    setting = setting_of(configuration, tokenizer, config)
    setting = replace(setting, fingerprint=model.fingerprint, ranks=spec.ranks)
    if isinstance(model, ModelOutline):
        setting = replace(setting, device=spec.device.type)
    elif not spec.apart:
        setting = replace(setting, model=model)
    return open_engine(setting, spec.count, apart=spec.apart, ray=spec.cluster, server=server)


def sampling_params(sampling: Sampling) -> tuple[SamplingParams, BeamSearchParams | None]:
    """How a problem's samples are drawn, in the engine's terms, or searched for."""
    from sharegen.engine.core.request import BeamSearchParams, SamplingParams

    if sampling.decoding == "beam":
        names = {each.name for each in fields(BeamSearchParams)} - {"temperature", "beam_width"}
        beam = BeamSearchParams(sampling.rows, **sampling.model_dump(include=names))
        return beam.of_rows, beam
    beams = {"decoding", "beam_width", "length_penalty", "early_stopping"}
    values = sampling.model_dump(exclude={"stop_when", *beams})
    values["logit_bias"] = values["logit_bias"] or None
    return SamplingParams(n=values.pop("samples"), **values), None
