"""PagedAttention's block sizes: what each wastes of the KV cache, and what sharing saves.

The memory is the paper's for 13B, 15.7K tokens, so that what is wasted costs rows. ShareGPT and
Alpaca are not at hand: prompts are random tokens, lengths log-normal. Those of the long trace are
to those of the short one as the paper has it of its two, 8.4 times for prompts and 5.8 for outputs.
Every sample has the length of its draw as its limit, so that what is going to be written is known.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import torch

from benchmarks.papers.experiment import Column, Experiment, Figure, Row, Settings
from benchmarks.papers.fitting import shapes_that_fit
from benchmarks.papers.paged import PAGED_ATTENTION
from sharegen.bench.engines import give_memory_back
from sharegen.bench.shapes import random_model
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import BeamSearchParams, Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.execute.kv_cache import block_format
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.opening import open_engine
from sharegen.engine.schedule.usage import CacheUsage, Meter
from sharegen.results.report.chart import Chart, Series
from sharegen.workload.recipe import RECIPES

_SPREAD = 0.8  # sigma of the logarithm of a length
_KINDS = ("used", "ahead", "internal")


@dataclass(frozen=True)
class Trace:
    """The mean lengths of prompts and of outputs, in tokens; both together at most `most`."""

    name: str
    prompt: int
    output: int
    most: int = 2048

    def lengths(self, count: int) -> list[tuple[int, int]]:
        rng = random.Random(self.name)

        def draw(mean: int, most: int) -> int:
            length = rng.lognormvariate(0, _SPREAD) * mean / math.exp(_SPREAD**2 / 2)
            return min(most, max(1, round(length)))

        prompts = [draw(self.prompt, self.most - 1) for _ in range(count)]
        return [(prompt, draw(self.output, self.most - prompt)) for prompt in prompts]


@dataclass(frozen=True)
class Sweep:
    """The jobs of an experiment. tokens: that the KV cache holds. requests: with one sample each,
    at every block size; shared: with as many samples, or beams, as each of the widths says, in
    blocks of 16.
    """

    shape: str
    tokens: int
    traces: Sequence[Trace]
    blocks: Sequence[int]
    requests: int
    widths: Sequence[int]
    shared: int
    rows: int = 256


FULL = Sweep(
    "codellama-13b",
    15_700,
    (Trace("short", 20, 60), Trace("long", 168, 348)),
    (8, 16, 32, 64, 128, 256),
    100,
    (2, 4, 6),
    40,
)
QUICK = Sweep(
    str(RECIPES / "tinymath" / "model"),
    1_024,
    (Trace("short", 8, 8, 256), Trace("long", 67, 46, 256)),
    (8, 64, 256),
    12,
    (2, 6),
    4,
)


def rows(settings: Settings) -> Iterator[Row]:
    return measure(QUICK if settings.quick else FULL, settings)


def measure(sweep: Sweep, settings: Settings) -> Iterator[Row]:
    """A row for each trace and block size, for a range of memory each, and for what is shared."""
    for shape in shapes_that_fit(settings.shape or (sweep.shape,), settings):
        model = load_model(random_model(shape, settings.device, settings.dtype))
        context = model.context_length
        traces = [replace(each, most=min(each.most, context)) for each in sweep.traces]
        name = shape.rstrip("/").rsplit("/", 1)[-1]
        for size in sweep.blocks:
            engine = _engine(model, sweep, size)
            for trace in traces:
                row = {"shape": name, "trace": trace.name, "way": "one sample", "block": size}
                yield row | _in_blocks(engine, trace, sweep.requests, settings.repeats)
            del engine
            give_memory_back()
        for trace in traces:
            row = {"shape": name, "trace": trace.name, "way": "one sample"}
            yield row | {"block": f"{trace.most:,} each"} | in_ranges(trace, sweep.requests)
        engine = _engine(model, sweep, 16)
        for trace in traces:
            for way in ("samples", "beams"):
                for width in sweep.widths:
                    row = {"shape": name, "trace": trace.name, "way": f"{width} {way}", "block": 16}
                    yield row | _shared(engine, trace, sweep.shared, way, width)
        del engine
        give_memory_back()


class _Watch(Meter):
    """Notes the rows of decoding steps, and the places of all blocks with nothing shared."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.rows = engine.scheduler.rows
        self.num_rows: list[int] = []
        self.places_apart = 0
        engine.observer.meter = self

    def note(self, usage: CacheUsage, decodes: bool) -> None:
        super().note(usage, decodes)
        if decodes:
            size = self.rows.block_size
            contexts = self.rows.position[: len(self.rows.sequences)]
            contexts = contexts[contexts >= 0]  # of an empty row it is -1
            self.num_rows.append(len(contexts))
            self.places_apart += int((-(-contexts // size)).sum()) * size


def in_ranges(trace: Trace, requests: int) -> Row:
    """What is wasted where each request has memory for the longest one, as long as it runs."""
    used = ahead = internal = 0
    for prompt, output in trace.lengths(requests):
        used += sum(prompt + fed for fed in range(1, output))
        ahead += sum(output - 1 - fed for fed in range(1, output))
        internal += (output - 1) * (trace.most - prompt - output + 1)
    reserved = used + ahead + internal
    places = {"reserved": reserved, "used": used, "ahead": ahead, "internal": internal}
    return shares(places)


def _engine(model: LoadedModel, sweep: Sweep, size: int) -> Engine:
    made_of = block_format(model.layers, model.dtype, "auto")
    blocks = -(-sweep.tokens // size)
    config = EngineConfig(
        max_sequences=sweep.rows,
        block_size=size,
        kv_cache_memory=blocks * size * made_of.token_bytes,
    )
    return open_engine(Setting(model, None, config))


def _in_blocks(engine: Engine, trace: Trace, count: int, repeats: int) -> Row:
    """Speeds after a run that is not timed, which says what of the blocks was in use."""
    requests = _requests(engine, trace, count)
    watch = _Watch(engine)
    preemptions = engine.stats.preemptions
    _run(engine, requests)
    counted = {
        "running": fmean(watch.num_rows),
        "preemptions": engine.stats.preemptions - preemptions,
        "peak_bytes": engine.stats.peak_kv["reserved"],
        **shares(watch.in_steps),
        "external_percent": _external(watch, engine),
    }
    speeds = [_run(engine, requests) for _ in range(repeats)]
    spread = stdev(speeds) if len(speeds) > 1 else 0.0
    return {"tokens_per_second": fmean(speeds), "spread": spread, **counted}


def _external(watch: _Watch, engine: Engine) -> float:
    """Return the percentage of places that are free and of no use to a prompt, in a mean step."""
    places = engine.pool.num_blocks * engine.pool.block_size * len(watch.num_rows)
    return 100 * watch.in_steps["external"] / places


def _shared(engine: Engine, trace: Trace, count: int, way: str, width: int) -> Row:
    """What several samples, or beams, of each prompt save: of the blocks that they would have."""
    watch = _Watch(engine)
    _run(engine, _requests(engine, trace, count, way, width))
    return {
        "running": fmean(watch.num_rows),
        "peak_bytes": engine.stats.peak_kv["reserved"],
        **shares(watch.in_steps),
        "saved_percent": 100 * (1 - watch.in_steps["reserved"] / watch.places_apart),
    }


def shares(places: Mapping[str, int]) -> Row:
    """Return what was used of what was reserved, and what was not, in percent."""
    reserved = places["reserved"]
    return {f"{kind}_percent": 100 * places[kind] / reserved for kind in _KINDS}


def _requests(
    engine: Engine, trace: Trace, count: int, way: str = "samples", width: int = 1
) -> list[Request]:
    rng = random.Random(0)
    found = []
    for i, (prompt, output) in enumerate(trace.lengths(count)):
        tokens = [rng.randrange(3, engine.model.vocab_size) for _ in range(prompt)]
        params, beam = SamplingParams(n=width, max_tokens=output, ignore_eos=True), None
        if way == "beams":
            beam = BeamSearchParams(beam_width=width, max_tokens=output, ignore_eos=True)
            params = beam.of_rows
        found.append(Request(i, tokens, params, range(width), beam=beam))
    return found


def _run(engine: Engine, requests: Sequence[Request]) -> float:
    """Return the tokens a second of a job, prompts and all; those of all beams are counted."""
    engine.reset_prefix_cache()
    before = engine.stats.generated_tokens
    _synchronize(engine)
    started = time.perf_counter()
    for _ in engine.generate(requests):
        pass
    _synchronize(engine)
    return (engine.stats.generated_tokens - before) / (time.perf_counter() - started)


def _synchronize(engine: Engine) -> None:
    if engine.model.device.type == "cuda":
        torch.cuda.synchronize(engine.model.device)


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Over the size of a block what is wasted and how fast it is, a line for each trace."""
    sized = [row for row in rows if "tokens_per_second" in row]
    names = list(dict.fromkeys((row["shape"], row["trace"]) for row in sized))

    def lines(value: Callable[[Row], float]) -> list[Series]:
        return [
            Series(
                f"{shape}, {trace}",
                [
                    (row["block"], value(row))
                    for row in sized
                    if (row["shape"], row["trace"]) == (shape, trace)
                ],
            )
            for shape, trace in names
        ]

    wasted, speed = lines(lambda r: 100 - r["used_percent"]), lines(_speed)
    x = "tokens of a block"
    return [
        Chart("wasted", "What is wasted of the KV cache", x, "% of reserved", wasted, x_log=True),
        Chart("speed", "Speed by block size", x, "tokens per second", speed, x_log=True),
    ]


def _speed(row: Row) -> float:
    speed: float = row["tokens_per_second"]
    return speed


EXPERIMENT = Experiment(
    paper=PAGED_ATTENTION,
    machine="OPT-13B on one A100-40GB, 12 GB or 15.7K tokens of KV",
    figures=(
        Figure("impact of block size", "ShareGPT, sizes 16 to 128", "the best performance"),
        Figure("impact of block size", "Alpaca, sizes 16 and 32", "work well; larger ones degrade"),
        Figure("sharing, Alpaca", "blocks saved by parallel sampling", "6.1% to 9.8%"),
        Figure("sharing, Alpaca", "blocks saved by beam search", "37.6% to 55.2%"),
        Figure("sharing, ShareGPT", "blocks saved by parallel sampling", "16.2% to 30.5%"),
        Figure("sharing, ShareGPT", "blocks saved by beam search", "44.3% to 66.3%"),
    ),
    columns=(
        Column("shape", "shape"),
        Column("trace", "trace"),
        Column("way", "each prompt"),
        Column("block", "block"),
        Column("tokens_per_second", "tokens/s", 0, "spread"),
        Column("running", "rows", 1),
        Column("preemptions", "preempted"),
        Column("used_percent", "used %", 1),
        Column("ahead_percent", "ahead %", 1),
        Column("internal_percent", "internal %", 1),
        Column("external_percent", "external %", 1),
        Column("saved_percent", "saved by sharing %", 1),
    ),
    rows=rows,
    charts=charts,
    takes=("shape",),
)
