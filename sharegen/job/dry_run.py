"""What a job would share, and how it would be cut, told before it runs: `sharegen plan`."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sharegen.common.remarks import remark
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.errors import DataError
from sharegen.job.cut import Cut, cut
from sharegen.job.machine import kv_cache_limit, load, max_sequences
from sharegen.job.plan import Plan, make_plan
from sharegen.workload.configuration import Configuration
from sharegen.workload.problem import load_workload
from sharegen.workload.prompt import tokenise

if TYPE_CHECKING:
    import torch

    from sharegen.engine.model.load import LoadedModel


def plan_job(configuration: Configuration) -> Plan:
    """What the job would share, from the model's config alone: nothing is sampled or loaded."""
    from sharegen.engine.model.checkpoint import resolve_device
    from sharegen.job.reading import readings_on

    model, ids, prompts = _asked(configuration)
    machine = configuration.machine
    device = resolve_device(machine.device)
    tree = PrefixTree.build(prompts, machine.block_size)
    memory = machine.kv_cache_memory
    if memory is None:
        limit = kv_cache_limit(configuration, model, device, tree)
        memory = min(_free_memory(model, device), limit)
    samples = configuration.sampling.samples
    plan = make_plan(
        tree,
        prompts,
        ids,
        samples,
        configuration.sampling.max_tokens,
        num_blocks=memory // (model.kv_bytes_per_token * machine.block_size),
        kv_bytes_per_token=model.kv_bytes_per_token,
        max_sequences=max_sequences(configuration, device),
    )
    return replace(plan, readings=readings_on(device, model, tree, samples, plan.fit))


@dataclass(frozen=True)
class CutPlan:
    """A job as it would be cut.

    samples: of each problem; kv_bytes_per_token: of the model.
    """

    cut: Cut
    samples: int
    kv_bytes_per_token: int


def cut_job(configuration: Configuration, num_parts: int) -> CutPlan:
    """How the job would be cut into so many parts; nothing is sampled or loaded."""
    model, _, prompts = _asked(configuration)
    tree = PrefixTree.build(prompts, configuration.machine.block_size)
    found = cut(tree, configuration.sampling.problem_tokens, num_parts)
    return CutPlan(found, configuration.sampling.samples, model.kv_bytes_per_token)


def _asked(configuration: Configuration) -> tuple[LoadedModel, list[str], list[array[int]]]:
    """The model without its weights, and the ids and token ids of the prompts that have any."""
    workload = load_workload(configuration)
    for bad in workload.bad_rows:
        remark(f"{bad.error}: it is left out")
    model, tokenizer = load(configuration, weights=False)
    tokens = tokenise([problem.prompt for problem in workload.problems], tokenizer)
    ids = [problem.id for problem, prompt in zip(workload.problems, tokens, strict=True) if prompt]
    prompts = [prompt for prompt in tokens if prompt]
    if not prompts:
        raise DataError("no row can be asked: the prompts are empty")
    return model, ids, prompts


def _free_memory(model: LoadedModel, device: torch.device) -> int:
    """Bytes for the KV cache, as far as can be told before the weights are on the device."""
    from sharegen.engine.execute.memory import estimate

    weights = sum(weight.nbytes for weight in model.model.parameters())
    return max(0, estimate(device) - (weights if device.type == "cuda" else 0))
