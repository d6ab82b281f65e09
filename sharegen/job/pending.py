"""What a job has still to draw: its problems, ready for the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sharegen.common.log import log
from sharegen.errors import CapacityError, DataError, SharegenError
from sharegen.job.engines import sampling_params
from sharegen.job.stop_when import Stopping
from sharegen.results.journal.journal import Journal, Record
from sharegen.results.journal.keys import Keys
from sharegen.results.screen.progress import EarlierProgress
from sharegen.workload.problem import Problem, random_key

if TYPE_CHECKING:
    from sharegen.engine.core.request import BeamSearchParams, Request, SamplingParams


@dataclass(frozen=True)
class PendingProblem:
    """A problem, ready for the engine; recorded: samples that earlier runs have of it."""

    problem: Problem
    request: Request
    recorded: int


def pending_problems(
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
    splits: Sequence[Sequence[int]],
    alone: Sequence[int],
    finished: Keys,
    stopping: Stopping | None,
) -> list[PendingProblem]:
    """Every problem as a request for its samples that are not finished.

    Problems that are sampled alike share one object of sampling parameters.

    Args:
        prompts: [num_problems] their token ids.
        splits: [num_problems] where the tree splits them.
        alone: [num_problems] whether one sample alone reads the last of these nodes.
        stopping: the rule by which samples need not be drawn, if there is one.
    """
    from sharegen.engine.core.request import Request

    known: dict[int, tuple[SamplingParams, BeamSearchParams | None]] = {}
    pending: list[PendingProblem] = []
    for problem, prompt, cuts, lonely in zip(problems, prompts, splits, alone, strict=True):
        every = range(problem.sampling.samples)
        samples: Sequence[int] = every
        if finished:  # else no prompt needs its hash before it has a sample
            samples = finished.missing(problem.id, problem.prompt_hash, every)
        recorded = len(every) - len(samples)
        key, required = random_key(problem.id), None
        if stopping is not None:
            deciding = stopping.deciding(problem, key)
            samples, required = () if deciding.is_decided else samples, deciding.required
        if id(problem.sampling) not in known:
            known[id(problem.sampling)] = sampling_params(problem.sampling)
        params, beam = known[id(problem.sampling)]
        request = Request(
            key,
            prompt,
            params,
            samples,
            splits=cuts,
            required=required,
            alone=lonely,
            beam=beam,
        )
        pending.append(PendingProblem(problem, request, recorded))
    return pending


def admitted(
    pending: Sequence[PendingProblem],
    errors: Sequence[SharegenError | None],
    journal: Journal,
    strict: bool,
) -> tuple[list[PendingProblem], list[Request]]:
    """The problems that can run, and the requests to put to the engine.

    The other problems become lines of the journal. They stay among the requests without samples:
    where the tree splits depends only on the prompts, not on what fits this machine.

    Args:
        errors: [num_problems] why the engine cannot run each, or None.
        strict: whether the first of them ends the job.

    Raises:
        DataError: no problem can run.
        CapacityError: none can, and the first of them does not fit the memory.
    """
    asked: list[PendingProblem] = []
    requests: list[Request] = []
    first_error: SharegenError | None = None
    for item, error in zip(pending, errors, strict=True):
        request, name = item.request, item.problem.id
        if error is None or not request.samples:
            asked.append(item)
        elif strict:
            raise type(error)(f"problem {name}: {error} (--strict)")
        else:
            first_error = first_error or error
            log(f"problem {name}: {error} (the problem is left out)")
            journal.append(Record(name, None, None, error=str(error)))
            request = replace(request, samples=())
        if request.prompt_token_ids:
            requests.append(request)
    if not asked:
        assert first_error is not None
        kind = CapacityError if isinstance(first_error, CapacityError) else DataError
        raise kind(f"no row can be asked: {first_error}")
    return asked, requests


def earlier_progress(asked: Sequence[PendingProblem], journal: Journal) -> EarlierProgress:
    """The progress that earlier runs made on the problems that are asked."""
    lengths: Counter[int] = Counter()
    for (tokens, _), count in journal.on_record.lengths.items():
        lengths[tokens] += count
    return EarlierProgress(
        samples=sum(item.recorded for item in asked),
        problems=sum(not item.request.samples for item in asked),
        lengths=lengths,
    )
