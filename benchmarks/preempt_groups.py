"""`python -m benchmarks preempt --groups`: single samples make room, or all of a request together.

PagedAttention preempts the sequences of a request together, for the blocks that they share (Kwon et
al., SOSP 2023, section 4.5). Here what they share lies in the prompt's nodes, which stay. The same
job runs both ways, where what is preempted is computed again and where it may be swapped; first
with an admission that learns how long samples are, then with one that was told they are short, so
that blocks run out all the time.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.preempt import PROMPT, check, token_bytes
from sharegen.bench.engines import give_memory_back
from sharegen.bench.shapes import random_model
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.lengths import Lengths
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.checkpoint.source import resolve_device
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.opening import open_engine
from sharegen.engine.schedule.preemption import youngest
from sharegen.engine.schedule.sequence import Sequence as Sample
from sharegen.errors import UsageError

BLOCK_SIZES = (16,)
LENGTHS = (256,)
_SAMPLES = 8  # of a request
_FULL = 4  # how often all rows are filled by a job
_REACH = 4  # the longest sample, in mean lengths


def whole_request(running: Iterable[Sample]) -> Sequence[Sample]:
    """Return all rows of the request whose sample joined last, the youngest first."""
    samples = sorted(running, key=lambda sample: sample.joined, reverse=True)
    return [sample for sample in samples if sample.group is samples[0].group]


UNITS: dict[str, Callable[[Iterable[Sample]], Sequence[Sample]]] = {
    "sample": youngest,
    "request": whole_request,
}


@dataclass(frozen=True)
class Ran:
    """What jobs took in the mean, whose samples have `length` tokens on average.

    lengths: whether they are "learnt", or admission was told that they are "short". lost: whether
    what is preempted is computed "again", or may be "swapped". preempted: samples, each time.
    again: tokens that were given to the model once more; prompts_again: of prompts that had to
    make room. swapped_bytes: to host memory. tokens: of all samples.
    """

    block_size: int
    length: int
    lengths: str
    lost: str
    unit: str
    steps: float
    seconds: float
    preempted: float
    again: float
    prompts_again: float
    swapped_bytes: float
    tokens: float


def bench_groups(
    shape: str,
    *,
    block_sizes: Sequence[int] = BLOCK_SIZES,
    lengths: Sequence[int] = LENGTHS,
    rows: int = 64,
    repeats: int = 5,
    device: str = "cuda",
    dtype: str = "bfloat16",
    compile_model: bool = True,
) -> dict[str, Any]:
    """The jobs by block size and mean length; prints a table to stderr.

    shape: a known shape or a model folder (its config; weights are random). rows: sequences that
    decode together, at least 16. repeats: jobs, each with other prompts and another seed. Raises
    UsageError for a model that keeps states, or whose context is too short.
    """
    if rows < 2 * _SAMPLES:
        raise UsageError(f"--rows {rows}: --groups needs at least {2 * _SAMPLES}, of two requests")
    loaded = load_model(random_model(shape, resolve_device(device), getattr(torch, dtype)))
    check(loaded, shape, lengths, reach=_REACH)
    print(f"{'block':>6} {'length':>6} {'lengths':>8} {'lost':>8} {'unit':>8} {'steps':>7} "
          f"{'seconds':>8} {'preempted':>9} {'again':>9} {'prompts':>8} {'swapped MiB':>11}",
          file=sys.stderr)  # fmt: skip
    found: list[Ran] = []
    for ran in measure(loaded, block_sizes, lengths, rows, repeats, compile_model):
        found.append(ran)
        print(f"{ran.block_size:>6} {ran.length:>6,} {ran.lengths:>8} {ran.lost:>8} {ran.unit:>8} "
              f"{ran.steps:>7,.0f} {ran.seconds:>8.2f} {ran.preempted:>9,.0f} {ran.again:>9,.0f} "
              f"{ran.prompts_again:>8,.0f} {ran.swapped_bytes / 2**20:>11,.1f}",
              file=sys.stderr)  # fmt: skip
    return {
        "bench": "preempt groups", "shape": shape, "device": str(loaded.device), "dtype": dtype,
        "rows": rows, "samples": _SAMPLES, "jobs": [asdict(ran) for ran in found],
    }  # fmt: skip


def measure(
    loaded: LoadedModel,
    block_sizes: Sequence[int],
    lengths: Sequence[int],
    rows: int,
    repeats: int,
    compile_model: bool,
) -> Iterator[Ran]:
    """Run each job, one after the other."""
    for block_size in block_sizes:
        for length in lengths:
            job = _Job(loaded, block_size, length, rows)
            for lost in ("again", "swapped"):
                yield from job.run(lost, repeats, compile_model)
                give_memory_back()


class _Job:
    """Requests of eight samples, four times as many samples as rows.

    Random weights draw nearly uniformly: with N stop tokens of a vocabulary of V, a sample ends
    with a probability of about N / V a step.
    """

    def __init__(self, loaded: LoadedModel, block_size: int, length: int, rows: int) -> None:
        self._loaded, self._block_size = loaded, block_size
        self._length, self._rows = length, rows
        self._params = SamplingParams(
            temperature=1.0,
            max_tokens=_REACH * length,
            stop_token_ids=range(max(1, round(loaded.vocab_size / length))),
            ignore_eos=True,
        )

    def run(self, lost: str, repeats: int, compile_model: bool) -> Iterator[Ran]:
        """Run both units and admissions where what is lost is computed again, or may be swapped."""
        memory = self._blocks() * self._block_size * token_bytes(self._loaded)
        config = EngineConfig(
            max_sequences=self._rows,
            block_size=self._block_size,
            kv_cache_memory=memory,
            compile=compile_model,
            swap_space=0.0 if lost == "again" else memory / 2**30,
        )
        engine = open_engine(Setting(self._loaded, None, config))
        self._draw(engine, 0, None)  # compiles, captures graphs, and times a token
        for lengths, known in (("learnt", None), ("short", self._short())):
            for unit, victims in UNITS.items():
                engine.scheduler.preemption.victims = victims
                before = self._counts(engine)
                begin = time.perf_counter()
                tokens = sum(self._draw(engine, seed, known) for seed in range(repeats))
                totals = {"seconds": time.perf_counter() - begin, "tokens": tokens}
                after = self._counts(engine)
                totals |= {name: after[name] - before[name] for name in after}
                means = {name: total / repeats for name, total in totals.items()}
                yield Ran(self._block_size, self._length, lengths, lost, unit, **means)

    def _blocks(self) -> int:
        """Half of what all rows hold on average, and their prompts; at least the longest sample."""
        prompts = -(-PROMPT // self._block_size) * -(-self._rows // _SAMPLES)
        half = self._rows * -(-self._length // self._block_size) // 2
        longest = -(-_REACH * self._length // self._block_size)
        return prompts + max(half, longest)

    def _short(self) -> Lengths:
        """Run a job whose samples are about one block long, so many that what comes weighs nothing.

        Of those with so many blocks every other one has no more.
        """
        classes = -(-_REACH * self._length // self._block_size)
        ended = {
            index * self._block_size + 1: 2 ** (classes - index) << 20 for index in range(classes)
        }
        return Lengths(ended=Counter(ended))

    def _draw(self, engine: Engine, seed: int, known: Lengths | None) -> int:
        """Draw one job; return how many tokens its samples have."""
        rng, vocabulary = random.Random(seed), self._loaded.vocab_size
        prompts = [
            [rng.randrange(vocabulary) for _ in range(PROMPT)]
            for _ in range(_FULL * self._rows // _SAMPLES)
        ]
        requests = [
            Request(key, prompt, self._params, range(_SAMPLES))
            for key, prompt in enumerate(prompts)
        ]
        engine.reset_prefix_cache()
        done = engine.generate(requests, seed=seed, lengths=known)
        return sum(len(completion.token_ids) for completion in done)

    def _counts(self, engine: Engine) -> dict[str, int]:
        stats, swapping = engine.stats, engine.scheduler.swapping
        block_bytes = self._block_size * token_bytes(self._loaded)
        return {
            "steps": stats.decode_steps,
            "preempted": stats.preemptions,
            "again": stats.tokens_replayed,
            "prompts_again": stats.prompt_tokens_recomputed,
            "swapped_bytes": swapping.blocks_saved * block_bytes,
        }
