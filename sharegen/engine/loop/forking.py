"""Forks: which sample is gone on from, and the request that goes on from it.

A fork is a request of its own, whose prompt is its parent's with some of the parent's outputs. Its
key depends on what is forked alone, and further forks of the same text get further sample indices,
so that no draw depends on when somebody forks.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from sharegen.engine.core.random_key import row_key
from sharegen.engine.core.request import Completion, Request, SamplingParams, TokenLogprobs
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.sequence import Sequence
from sharegen.errors import UsageError


@dataclass(frozen=True)
class Parent:
    """A sample that is gone on from. outputs: its tokens so far; sequence: what has their KV, while
    anything does."""

    request: Request
    sample: int
    outputs: Seq[int]
    sequence: Sequence | None


class Forks:
    """The forks of one job."""

    def __init__(self) -> None:
        self._forked: dict[int, int] = {}  # by request key: samples
        self._cancelled: set[tuple[int, int]] = set()  # request keys and samples

    def clear(self) -> None:
        """The job is over."""
        self._forked.clear()
        self._cancelled.clear()

    def cancelled(self, key: int, samples: Iterable[int]) -> None:
        """Note that samples of a request do not run any more, and never finish."""
        self._cancelled.update((key, sample) for sample in samples)

    def parent(self, of: Completion | tuple[int, int], scheduler: Scheduler) -> Parent:
        """A completion of the job, or the sample that runs by (request key, sample).

        Raises UsageError where no such sample runs.
        """
        place = of if isinstance(of, tuple) else (of.request.key, of.sample)
        key, sample = place
        sequence = scheduler.find(key, sample)
        if isinstance(of, Completion):
            if sequence is not None and sequence.group.request is not of.request:
                sequence = None  # of another job
            return Parent(of.request, sample, of.token_ids, sequence)
        if sequence is not None and sequence.group.search is not None:
            raise UsageError(f"request {key} is a beam search that runs: fork its completions")
        if sequence is not None and not sequence.finished:
            return Parent(sequence.group.request, sample, sequence.tokens, sequence)
        if place in self._cancelled:
            raise UsageError(f"sample {sample} of request {key} was cancelled: fork another one")
        raise UsageError(f"sample {sample} of request {key} does not run: fork its completion")

    def request(self, parent: Parent, params: SamplingParams | None, tokens: int | None) -> Request:
        """What goes on from a parent's first `tokens` outputs, or from all of them.

        Raises UsageError where it has not so many, or does not say how to go on.
        """
        origin, outputs = parent.request, parent.outputs
        count = len(outputs) if tokens is None else tokens
        if not 1 <= count <= len(outputs):
            raise UsageError(f"tokens is {count}: the sample has {len(outputs)}, give 1 to that")
        if params is None and origin.beam is not None:
            raise UsageError(
                "a fork of a text that a beam search found needs SamplingParams: give some"
            )
        params = params or origin.params
        key = row_key(count, origin.key, parent.sample)
        stream = None
        if origin.stream is not None:
            stream = row_key(count, origin.stream, parent.sample)
        first = self._forked.get(key, 0)
        return Request(
            key,
            [*origin.prompt_token_ids, *outputs[:count]],
            params,
            range(first, first + params.n),
            origin.keep,
            text_tokens=_text_tokens(origin, params, count),
            stream=stream,
        )

    def add_fork(self, request: Request) -> None:
        """Let it join the job: the next ones of the same text have other sample indices."""
        self._forked[request.key] = self._forked.get(request.key, 0) + len(request.samples)


def _text_tokens(parent: Request, params: SamplingParams, outputs: int) -> int:
    """How much of a fork's prompt is text of its structured outputs: its parent's, if they had the
    same."""
    asked = params.structured_outputs
    if asked is None or asked != parent.params.structured_outputs:
        return 0
    return parent.text_tokens + outputs


def outputs_so_far(scheduler: Scheduler) -> dict[tuple[int, int], list[int]]:
    """The tokens of all running samples, by (request key, sample or beam rank)."""
    found: dict[tuple[int, int], list[int]] = {}
    for sequence in (*scheduler.rows.running(), *scheduler.without_row()):
        if not sequence.finished:
            beams = sequence.group.beams
            for sample in sequence.samples:
                of_sample = beams[sample] if beams else sequence
                found[sequence.group.request.key, sample] = list(of_sample.tokens)
    return found


@dataclass(frozen=True)
class SoFar:
    """What a sample that runs has drawn: its tokens, and what the model said of them if asked.

    Both lists are the engine's own and grow with the next step.
    """

    sample: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None


def outputs_of(scheduler: Scheduler, key: int) -> list[SoFar]:
    """The tokens of the samples of one request that run; without those of a beam search."""
    return [
        SoFar(sample, sequence.tokens, sequence.logprobs)
        for sequence in scheduler.alive(key)
        for sample in sequence.samples
        if sequence.group.search is None
    ]
