"""ChunkAttention's table 4 and figure 5: requests that arrive by a Poisson process.

Prompts share all but their last block, which is each request's own: a question must differ
somewhere. The engine is told nothing of it: it finds what is shared as requests come. The same
arrivals, drawn anew for each repeat, go to an engine that shares nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from benchmarks.arrivals import Replay, poisson, replay
from benchmarks.graphs import ready_for
from benchmarks.papers.chunk import CHUNK_ATTENTION
from benchmarks.papers.experiment import Column, Experiment, Figure, Row, Settings
from benchmarks.papers.fitting import has_context, memory_of_kv, shapes_that_fit
from sharegen.bench.engines import Engines
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.results.report.chart import Chart, Series

_BLOCK = EngineConfig().block_size
_WAYS = {"shared": None, "not shared": 0}  # levels, as for Engines


@dataclass(frozen=True)
class Load:
    """The load of a server. prompt, completion: tokens of every request; rates: requests a second,
    one after the other.

    The first rate is that of table 4.
    """

    prompt: int
    completion: int
    rates: Sequence[float]

    def requests(self, count: int, vocab_size: int) -> list[Request]:
        """Prompts that share all but their last block."""
        rng = random.Random(0)

        def tokens(count: int) -> list[int]:
            return [rng.randrange(3, vocab_size) for _ in range(count)]

        params = SamplingParams(temperature=1.0, max_tokens=self.completion, ignore_eos=True)
        common = tokens(self.prompt - _BLOCK)
        return [Request(i, common + tokens(_BLOCK), params, range(1)) for i in range(count)]


@dataclass(frozen=True)
class Sweep:
    """The runs of an experiment. count: requests that arrive in each run; batch: the most that
    decode together.
    """

    shape: str
    loads: Sequence[Load]
    count: int
    batch: int


FULL = Sweep(
    "llama2-7b",
    (
        Load(1024, 512, (1.0, 2.0, 3.0, 4.0, 6.0)),
        Load(2048, 512, (0.6, 1.0, 2.0, 3.0, 4.0)),
        Load(4096, 512, (0.4,)),
    ),
    count=40,
    batch=32,
)
QUICK = Sweep("tiny", (Load(512, 32, (2.0, 8.0)),), count=16, batch=8)


def rows(settings: Settings) -> Iterator[Row]:
    return measure(QUICK if settings.quick else FULL, settings)


def measure(sweep: Sweep, settings: Settings) -> Iterator[Row]:
    """A row for each rate of each load, first with what prompts share stored and read once."""
    for shape in shapes_that_fit(settings.shape or (sweep.shape,), settings):
        engines = Engines(
            shape,
            str(settings.device),
            settings.dtype,
            kv_cache_memory=memory_of_kv(settings),
        )
        for way, levels in _WAYS.items():
            engine = engines.make(sweep.batch, levels)
            for load in sweep.loads:
                what = f"{shape}, {way}, prompts of {load.prompt:,}"
                if not has_context(engine, load.prompt + load.completion, what):
                    continue
                _warm_up(engine, load, sweep.batch)
                for rate in load.rates:
                    where = {"shape": shape, "way": way, "prompt": load.prompt, "rate": rate}
                    yield where | _measured(engine, load, rate, sweep.count, settings.repeats)
            del engine
        del engines


def _warm_up(engine: Engine, load: Load, batch: int) -> None:
    """Every number of rows once, so that no graph is captured later."""
    ready_for(engine, load.completion)
    short = Load(load.prompt, batch + 1, ())
    requests = [
        replace(request, params=replace(request.params, max_tokens=2 + request.key))
        for request in short.requests(batch, engine.model.vocab_size)
    ]
    replay(engine, requests, [0.0] * batch)
    engine.reset_prefix_cache()


def _measured(engine: Engine, load: Load, rate: float, count: int, repeats: int) -> Row:
    """Return the means over the repeats, and the largest of the peaks."""
    requests = load.requests(count, engine.model.vocab_size)
    runs: list[Replay] = []
    for seed in range(repeats):
        runs.append(replay(engine, requests, poisson(rate, count, seed)))
        engine.reset_prefix_cache()
    latencies = [1e3 * fmean(run.normalised) for run in runs]
    return {
        "completion": load.completion,
        "latency_ms": fmean(latencies),
        "latency_spread": stdev(latencies) if repeats > 1 else None,
        "peak_kv_mb": max(run.peak_bytes for run in runs) / 1e6,
        "peak_batch": max(run.peak_batch for run in runs),
        "seconds": fmean(run.seconds for run in runs),
    }


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw figure 5: normalised latency over the rate, for each shape and length of prompt."""
    found: list[Chart] = []
    for shape, prompt in dict.fromkeys((row["shape"], row["prompt"]) for row in rows):
        there = [row for row in rows if (row["shape"], row["prompt"]) == (shape, prompt)]
        series = [
            Series(way, [(row["rate"], row["latency_ms"]) for row in there if row["way"] == way])
            for way in _WAYS
        ]
        title = f"{shape}, prompts of {prompt:,} tokens"
        name = f"arrivals-{len(found)}"
        found.append(Chart(name, title, "requests a second", "ms a completion token", series))
    return found


_TABLE_4 = (
    (1024, 0, 1.0, "19.92, 19.11; 14.73, 11.90; 23, 18"),
    (1024, 1024, 1.0, "20.80, 14.07; 14.79, 3.28; 23, 14"),
    (2048, 0, 0.6, "21.90, 19.43; 21.70, 22.41; 19, 20"),
    (2048, 2048, 0.6, "21.61, 15.20; 21.09, 3.40; 19, 12"),
    (4096, 0, 0.4, "26.23, 26.88; 34.59, 35.13; 16, 16"),
    (4096, 4096, 0.4, "27.62, 17.16; 35.42, 4.00; 16, 11"),
)

EXPERIMENT = Experiment(
    paper=CHUNK_ATTENTION,
    machine="one A100-80GB, Open Llama2 7B in FP16, at most 32 sequences, completions of 512",
    figures=(
        Figure("table 4", "its columns", "ms a token; peak KV in GB; peak batch: vLLM, ChunkLlama"),
        *(
            Figure("table 4", f"prompt {prompt:,}, shared {shared:,}, {rate} a second", numbers)
            for prompt, shared, rate, numbers in _TABLE_4
        ),
        Figure(
            "figure 5 (section 4.2)",
            "requests a second below 40 ms a token, 1,024 shared: vLLM, ChunkLlama",
            "1.8, 2.9",
        ),
        Figure(
            "figure 5 (section 4.2)",
            "the same, 2,048 shared: vLLM, ChunkLlama",
            "1.0, 2.3",
        ),
    ),
    columns=(
        Column("shape", "shape"),
        Column("way", "prompts"),
        Column("prompt", "tokens"),
        Column("completion", "completion"),
        Column("rate", "a second", 1),
        Column("latency_ms", "ms a token", 2, "latency_spread"),
        Column("peak_kv_mb", "peak KV MB", 1),
        Column("peak_batch", "peak batch"),
    ),
    rows=rows,
    charts=charts,
    takes=("shape",),
    repeats=1,
)
