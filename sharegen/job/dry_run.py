"""What a job would share, and how it would be cut, before it runs: `sharegen plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sharegen.common.cores import available_cores
from sharegen.common.log import log
from sharegen.common.names import listed, nearest
from sharegen.common.shard import Shard
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.model.checkpoint.folder import check_name
from sharegen.errors import DataError, RequestError
from sharegen.job.cut import Cut
from sharegen.job.default_journal import find_journal
from sharegen.job.engines import EngineSpec
from sharegen.job.gold_reading import gold_read_beside
from sharegen.job.imports import import_engine, on_cpu
from sharegen.job.job_content import JobContent
from sharegen.job.machine import (
    blocks_of,
    extents,
    kv_cache_limit,
    load,
    max_sequences,
    single,
    state_slots,
    tokenizer_of,
)
from sharegen.job.reordering import load_asked, load_unread, saved_by_order
from sharegen.job.share import cut_job, share_of
from sharegen.job.sharing_plan import SharingPlan, make_plan
from sharegen.job.template_clock import clock_of, log_clock
from sharegen.results.journal.journal_family import JournalFamily
from sharegen.workload.clock import Clock
from sharegen.workload.configuration import Configuration
from sharegen.workload.problem import Workload, tokenise_problems
from sharegen.workload.prompt import text_of, token_ids, tokenise
from sharegen.workload.sampling_section import Sampling

if TYPE_CHECKING:
    from torch import device as Device

    from sharegen.engine.model.loaded import LoadedModel


def plan_job(
    configuration: Configuration, shard: Shard | None = None, gpu_memory: int | None = None
) -> SharingPlan:
    """What the job would share, from the model's config alone: nothing is sampled or loaded.

    shard: of this part of it. gpu_memory: bytes of a GPU that the job is for, which need not be
    here; by default it is for the device that the configuration names.
    """
    workload = load_unread(configuration)
    with gold_read_beside(workload, configuration) as settled:
        return _plan(configuration, workload, settled, shard, gpu_memory)


def _plan(
    configuration: Configuration,
    workload: Workload,
    settled: Callable[[Workload], Workload],
    shard: Shard | None,
    gpu_memory: int | None,
) -> SharingPlan:
    """The plan of a workload. settled: which of its gold answers are known, once that is asked."""
    check_name(str(configuration.model))
    import_engine(configuration, computes=False)
    import torch

    from sharegen.engine.execute.memory import estimate
    from sharegen.engine.model.checkpoint.source import resolve_device
    from sharegen.job.attention_modes import attention_modes_on

    is_here = gpu_memory is None
    device = resolve_device(configuration.machine.device) if is_here else torch.device("cuda")
    model, tokenizer = load(configuration, weights=False, device=device)
    tokens: Sequence[Sequence[int]]
    splits: Sequence[Sequence[int]] | None = None
    alone: Sequence[bool] | None
    clock = _clock(configuration, workload)
    if shard is None:
        workload, tokens = tokenise_problems(workload, tokenizer, clock)
        alone = single(configuration, model, [problem.sampling for problem in workload.problems])
    else:
        share = share_of(configuration, workload, shard, clock)
        workload, tokens, splits = share.workload, share.prompts, share.splits
        alone = share.alone
    workload = settled(workload)
    workload.name_odd_rows()
    log_clock(clock, configuration)
    asked = _askable(workload, tokens, model)
    ids = [workload.problems[i].id for i in asked]
    samplings = [workload.problems[i].sampling for i in asked]
    prompts = [tokens[i] for i in asked]
    splits = None if splits is None else [splits[i] for i in asked]
    alone = None if alone is None else [alone[i] for i in asked]
    machine = configuration.machine
    tree = PrefixTree.build(prompts, machine.block_size, splits=splits, alone=alone)
    blocks = blocks_of(configuration, model)
    workers = _workers(configuration, samplings, device)
    memory = machine.kv_cache_memory
    if memory is None:
        limit = kv_cache_limit(configuration, model, device, tree, samplings)
        sharing = workers if device.type == "cpu" else 1
        memory = min(estimate(device, model.weights_bytes, gpu_memory) // sharing, limit)
    slots = state_slots(configuration, model, device, memory)
    left = memory - (slots or 0) * model.state_bytes
    samples, max_tokens = extents(samplings, model.context_length)
    plan = make_plan(
        tree,
        prompts,
        ids,
        samples,
        max_tokens,
        num_blocks=left
        // (blocks.shared_token_bytes * machine.block_size)
        * blocks.blocks_per_full,
        kv_bytes_per_token=blocks.token_bytes,
        max_sequences=max_sequences(configuration, device),
        workers=workers,
        rule=configuration.sampling.rule,
        width=blocks.blocks_per_full,
        state_bytes=model.state_bytes,
        state_slots=slots,
    )
    return replace(
        plan,
        ranks=machine.tensor_parallel_size,
        weights_bytes=model.weights_bytes,
        gpu_bytes=gpu_memory or 0,
        latent_bytes=blocks.token_bytes if blocks.latents else 0,
        spread_bytes=blocks.shared_token_bytes if blocks.latents else 0,
        readings=attention_modes_on(
            device, model, tree, samples, plan.fit, machine.deterministic, blocks.latents
        )
        if is_here
        else [],
        saved_by_order=None if shard else saved_by_order(workload),
        golds=sum(workload.problems[i].gold is not None for i in asked) if workload.golds else None,
    )


@dataclass(frozen=True)
class PromptPreview:
    """One prompt as it is asked.

    text: with the examples and the chat template; begins_with: what the tokenizer puts before it.
    """

    problem: str
    text: str
    tokens: int
    begins_with: str
    gold: str | None


def preview_prompt(configuration: Configuration, problem_id: str | None = None) -> PromptPreview:
    """The prompt of a problem, by default the first; reads the tokenizer, but not the model.

    Raises DataError for an id that no problem has, with the nearest.
    """
    workload = load_asked(configuration)
    workload.name_odd_rows()
    problems = {problem.id: problem for problem in workload.problems}
    if problem_id is not None and problem_id not in problems:
        near = nearest(problem_id, list(problems))
        hint = f"did you mean {near!r}?" if near else f"there are {listed(problems, 3)}"
        raise DataError(f"--show-prompt {problem_id}: no problem that can be asked has it: {hint}")
    problem = problems[problem_id] if problem_id is not None else workload.problems[0]
    tokenizer = tokenizer_of(configuration)
    clock = _clock(configuration, workload)
    text = text_of(problem.prompt, tokenizer, clock)
    [ids] = tokenise([problem.prompt], tokenizer, clock)
    log_clock(clock, configuration)
    bare = token_ids([text], tokenizer, begin=False)[0] if not problem.prompt.is_chat else ids
    head = list(ids)[: len(ids) - len(bare)]
    return PromptPreview(problem.id, text, len(ids), tokenizer.decode(head), problem.gold)


def _workers(configuration: Configuration, samplings: Sequence[Sampling], device: Device) -> int:
    """The engines that are asked for; on a CPU `auto` takes at most one a core.

    How many a cluster, or a machine with GPUs that is not this one, has room for is not asked.
    """
    asked = configuration.machine.workers
    is_elsewhere = device.type == "cuda" and on_cpu(configuration)
    if asked is None or configuration.machine.ray is not None or is_elsewhere:
        return asked if isinstance(asked, int) else 1
    return EngineSpec.of(configuration, samplings).count or available_cores()


def _askable(workload: Workload, tokens: Sequence[Sequence[int]], model: LoadedModel) -> list[int]:
    """The problems that a run would not refuse; raises DataError where there is none."""
    asked: list[int] = []
    errors = [bad.error for bad in workload.bad_rows]
    for i, (problem, prompt) in enumerate(zip(workload.problems, tokens, strict=True)):
        try:
            model.check_prompt(prompt, problem.sampling.max_tokens)
        except RequestError as error:
            errors.append(str(error))
            log(f"problem {problem.id}: {error} (the problem is left out)")
        else:
            asked.append(i)
    if not asked:
        raise DataError(f"no row can be asked: {errors[-1]}")
    return asked


def _clock(configuration: Configuration, workload: Workload) -> Clock:
    """The time that chat templates would see: the one of the journal that `run` would continue."""
    if not any(problem.prompt.is_chat for problem in workload.problems):
        return Clock.now()
    found = find_journal(JobContent.of(configuration, workload))
    return clock_of(configuration, JournalFamily(found.path, found))


@dataclass(frozen=True)
class CutPlan:
    """A job as it would be cut.

    samples: of the problems of each part; kv_bytes_per_token: of the model.
    """

    cut: Cut
    samples: list[int]
    kv_bytes_per_token: int

    def to_json(self) -> dict[str, Any]:
        """A mapping for each part, and what sharing is lost to the cut."""
        parts = zip(self.cut.parts, self.samples, strict=True)
        return {
            "shards": [
                {
                    "shard": number,
                    "problems": len(part.problems),
                    "samples": samples,
                    "prompt_tokens": part.prompt_tokens,
                    "kv_bytes": part.prompt_tokens * self.kv_bytes_per_token,
                    "work": part.work,
                }
                for number, (part, samples) in enumerate(parts, start=1)
            ],
            "imbalance": self.cut.imbalance,
            "prompt_tokens": self.cut.prompt_tokens,
            "copied": self.cut.copied,
        }


def plan_cut(configuration: Configuration, num_parts: int) -> CutPlan:
    """How the job would be cut into so many parts; nothing is sampled or loaded."""
    workload = load_asked(configuration)
    model, tokenizer = load(configuration, weights=False)
    clock = _clock(configuration, workload)
    workload, prompts = tokenise_problems(workload, tokenizer, clock)
    workload.name_odd_rows()
    log_clock(clock, configuration)
    problems = workload.problems
    _, found = cut_job(configuration, model, problems, prompts, num_parts)
    if found.prompt_tokens == 0:
        raise DataError("no row can be asked: the prompts are empty, or longer than the context")
    samples = [
        sum(problems[place].sampling.samples for place in part.problems) for part in found.parts
    ]
    return CutPlan(found, samples, model.kv_bytes_per_token)
