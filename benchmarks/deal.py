"""`python -m benchmarks deal`: how well a job is dealt to many workers, and what that costs.

The workers are clocks; all else is what a run uses: the tree, the driver, the journal, the keys.
"""

from __future__ import annotations

import math
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.clocks import Clocks, Speed
from sharegen.common.ragged import Ragged
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.messages import CompletionMessage, Setting
from sharegen.errors import SharegenError, UsageError
from sharegen.job.share import paths_of
from sharegen.results.journal.journal import Journal, Record
from sharegen.workload.problem import content_hash, random_key

PREFILL = 0.05
"""The work of a prompt token as a part of a drawn token's, as the driver assumes it."""

_VOCABULARY = 32_000
_GROUP = 100  # problems below one node of the second level


@dataclass(frozen=True)
class Shape:
    """A job of three levels: a stem that all prompts share, one of every 100, and their own.

    tokens: of a prompt: two fifths of them are the stem, three tenths their group's. samples have
    from 1 to max_tokens tokens, any number as often.
    """

    problems: int
    samples: int
    tokens: int
    max_tokens: int
    seed: int

    def prompts(self) -> Iterator[npt.NDArray[np.int32]]:
        """Yield the tokens [tokens] of each problem, in order."""
        rng = np.random.default_rng(self.seed)
        stem, group = 2 * self.tokens // 5, 3 * self.tokens // 10
        prompt = rng.integers(_VOCABULARY, size=self.tokens, dtype=np.int32)
        for i in range(self.problems):
            start = stem if i % _GROUP == 0 else stem + group
            prompt[start:] = rng.integers(_VOCABULARY, size=self.tokens - start, dtype=np.int32)
            yield prompt

    def lengths(self) -> npt.NDArray[np.int32]:
        """Return [problems, samples], the tokens of each sample, whoever draws it."""
        rng = np.random.default_rng([self.seed, 1])
        size = (self.problems, self.samples)
        return rng.integers(1, self.max_tokens + 1, size, dtype=np.int32)


@dataclass(frozen=True)
class Crew:
    """Workers: each decodes `slots` samples together, about `steps` times a second.

    Their speeds differ by up to `spread` of it, and a share of them, `deaths`, dies at some time.
    """

    workers: int
    slots: int
    steps: float
    spread: float
    deaths: float
    seed: int

    def speeds(self, work: float) -> list[Speed]:
        """Return the workers' speeds; those who die do so before all of them together could have
        done so much work.
        """
        rng = np.random.default_rng([self.seed, 2])
        steps = self.steps * rng.uniform(1 - self.spread, 1 + self.spread, self.workers)
        deaths = np.full(self.workers, math.inf)
        dying = round(self.deaths * self.workers)
        until = work / (self.slots * steps.sum())
        deaths[rng.permutation(self.workers)[:dying]] = rng.uniform(0, until, dying)
        prefill = PREFILL / self.slots
        pairs = zip(steps.tolist(), deaths.tolist(), strict=True)
        return [Speed(pace, self.slots, prefill, death) for pace, death in pairs]


def ideal_seconds(work: float, speeds: Sequence[Speed]) -> float:
    """When so much work is done where nobody who lives is ever idle, and nothing is done twice."""
    pace = [speed.steps * speed.slots for speed in speeds]
    total, now = sum(pace), 0.0
    for death, lost in sorted(zip((speed.death for speed in speeds), pace, strict=True)):
        if now + work / total <= death:
            break
        work -= (death - now) * total
        now, total = death, total - lost
    return now + work / total


class _Job:
    """What is the same however many workers there are: prompts, tree, splits, keys."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.prompts = Ragged(shape.prompts())
        self.lengths = shape.lengths()
        started = time.thread_time()
        self.tree = PrefixTree.build(self.prompts, EngineConfig().block_size)
        self.splits, _ = paths_of(self.tree, self.prompts)
        self.tree_seconds = time.thread_time() - started
        self.tree_tokens = self.tree.num_tokens
        self.work = float(self.lengths.sum()) + PREFILL * self.tree_tokens
        self.params = SamplingParams(n=shape.samples, max_tokens=shape.max_tokens)
        self.ids = [str(i) for i in range(shape.problems)]
        self.hashes = [content_hash(name) for name in self.ids]
        self.places = {random_key(name): i for i, name in enumerate(self.ids)}
        assert len(self.places) == shape.problems
        self.drawn = [[0] * length for length in range(shape.max_tokens + 1)]

    def requests(self, journal: Journal) -> Iterator[Request]:
        """What the journal does not have."""
        every = range(self.shape.samples)
        for (key, i), prompt, splits in zip(
            self.places.items(), self.prompts, self.splits, strict=True
        ):
            samples = journal.on_record.finished.missing(self.ids[i], self.hashes[i], every)
            yield Request(key, prompt, self.params, samples, splits=splits)

    def draw(self, request: Request, sample: int) -> CompletionMessage:
        tokens = self.drawn[self.lengths[self.places[request.key], sample]]
        text = "The answer is 42."
        return CompletionMessage(
            request.key, sample, tokens, text, "stop", "\n", -12.5, None, None, None
        )

    def record(self, completion: Completion) -> Record:
        place = self.places[completion.request.key]
        digest = self.hashes[place]
        return Record(
            problem_id=self.ids[place],
            sample=completion.sample,
            prompt_hash=digest,
            completion=completion.text or "",
            num_tokens=len(completion.token_ids),
            finish_reason=completion.finish_reason,
            cumulative_logprob=completion.cumulative_logprob,
            answer="42",
            gold="42",
            row_hash=digest,
        )


def bench_deal(shape: Shape, crews: Sequence[Crew]) -> Iterator[dict[str, Any]]:
    """Deal the job to each crew; what came out, one after the other.

    Raises UsageError where all of a crew would die, SharegenError where a sample is not drawn
    exactly once.
    """
    for crew in crews:
        if round(crew.deaths * crew.workers) >= crew.workers:
            share = f"--deaths {crew.deaths:g} of --workers {crew.workers}"
            raise UsageError(f"{share} leaves nobody: give a smaller share")
    job = _Job(shape)
    for crew in crews:
        with tempfile.TemporaryDirectory() as folder:
            yield _deal(job, crew, Path(folder) / "dealt.jsonl")


def _deal(job: _Job, crew: Crew, path: Path) -> dict[str, Any]:
    shape = job.shape
    speeds = crew.speeds(job.work)
    clocks = Clocks(speeds, job.draw)
    journal_seconds = 0.0
    wall, started = time.perf_counter(), time.thread_time()
    with Journal.open(path, asdict(shape)) as journal, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of those that die
        driver = Driver([Setting("clock", None, EngineConfig())] * crew.workers, clocks)
        for completion in driver.generate(job.requests(journal)):
            begun = time.thread_time()
            journal.append(job.record(completion))
            journal_seconds += time.thread_time() - begun
        cpu = time.thread_time() - started
        computed = driver.stats.prompt_tokens_computed
        driver.close()
        journal.close()
        _check_all(job, journal)
    completions, messages = shape.problems * shape.samples, clocks.messages.total()
    ideal = ideal_seconds(job.work, speeds)
    ends = clocks.ends()
    dealing = cpu - clocks.seconds - journal_seconds
    each = 1e6 / completions
    busy = dealing + journal_seconds + clocks.wire_seconds
    return {
        "bench": "deal",
        **asdict(shape),
        **asdict(crew),
        "died": len(clocks.dead),
        "simulated_seconds": round(clocks.now, 2),
        "ideal_seconds": round(ideal, 2),
        "over_ideal": round(clocks.now / ideal - 1, 4),
        "last_over_mean_end": round(max(ends) * len(ends) / sum(ends), 4),
        "tree_tokens": job.tree_tokens,
        "duplicated_prefill": round(computed / job.tree_tokens - 1, 4),
        "messages": messages,
        "messages_per_simulated_second": round(messages / clocks.now, 1),
        "dealing_us_per_completion": round(dealing * each, 2),
        "pickling_us_per_completion": round(clocks.wire_seconds * each, 2),
        "journal_us_per_completion": round(journal_seconds * each, 2),
        "us_per_message": round(1e6 * busy / messages, 2),
        "pickled_bytes_per_completion": round(clocks.wire_bytes / completions),
        "completions_per_second_at_most": round(completions / busy),
        "driver_busy": round(busy / clocks.now, 4),
        "tree_seconds": round(job.tree_seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "wall_seconds": round(time.perf_counter() - wall, 1),
        "peak_rss_bytes": _peak(),
    }


def _check_all(job: _Job, journal: Journal) -> None:
    """Raise SharegenError unless the journal has every sample, and a line for each."""
    samples = range(job.shape.samples)
    keys = zip(job.ids, job.hashes, strict=True)
    missing = sum(len(journal.on_record.finished.missing(*key, samples)) for key in keys)
    lines = 0
    with open(journal.path, "rb") as file:
        while block := file.read(1 << 24):
            lines += block.count(b"\n")
    wanted = job.shape.problems * job.shape.samples
    if missing or lines != wanted:
        raise SharegenError(f"of {wanted:,} samples {missing:,} are missing in {lines:,} lines")


def _peak() -> int:
    """The most bytes of memory that this process has held so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
