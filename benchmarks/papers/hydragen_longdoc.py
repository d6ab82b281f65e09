"""Hydragen's figure 6: many questions at once about facts planted in a long document.

The document, examples and questions are yours (`--document`, `--facts`) or made here; where there
are more questions than facts they are asked again, as in appendix E.3. Every completion has the
same number of tokens, and the first line of it is judged. The time is that of decoding: prompts are
read before. Accuracy says something of a real model alone (`--model`); the bundled one has a
context of 2,048 tokens, and has not learnt to look things up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from benchmarks.papers.engine_ways import WAYS, Way
from benchmarks.papers.experiment import Column, Experiment, Figure, Row, Settings, say
from benchmarks.papers.haystack import Haystack, Size, haystack, is_right
from benchmarks.papers.hydragen import HYDRAGEN
from sharegen.bench.breakdown import PhaseClock
from sharegen.bench.ceiling import leave_attention_out
from sharegen.bench.decode import requests_that_fit
from sharegen.bench.engines import give_memory_back, tree_of
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.model.load import load_model
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.opening import open_engine
from sharegen.results.report.chart import Chart, Series
from sharegen.workload.prompt import Prompt, tokenise
from sharegen.workload.recipe import RECIPES

_BUNDLED = str(RECIPES / "tinymath" / "model")
_LONG = Size(words=16_000, facts=256, examples=5)  # about 20,000 tokens, as the paper has
_SHORT = Size(words=300, facts=12, examples=2)
_SHORT_CONTEXT = 32_768  # below, the long one may have no room
_QUESTIONS = (16, 64, 256, 1024)
_QUICK_QUESTIONS = (4, 16)


@dataclass(frozen=True)
class _Job:
    """A job. prompts: of the most questions that are asked; output: tokens of each completion."""

    hay: Haystack
    prompts: Sequence[Sequence[int]]
    tokenizer: Any
    output: int = 16

    def requests(self, count: int) -> list[Request]:
        params = SamplingParams(temperature=0.0, max_tokens=self.output, ignore_eos=True)
        return [Request(i, list(self.prompts[i]), params, range(1)) for i in range(count)]

    def accuracy(self, texts: dict[int, str]) -> float:
        """Return the share of right answers; texts: by the number of the question."""
        return fmean(is_right(self.hay.about(i), text) for i, text in texts.items())


def rows(settings: Settings) -> Iterator[Row]:
    name = settings.model or _BUNDLED
    tokenizer = load_tokenizer(name)
    loaded = load_model(name, device=settings.device, dtype=settings.dtype)
    questions = settings.questions or (_QUICK_QUESTIONS if settings.quick else _QUESTIONS)
    is_short = settings.quick or loaded.context_length < _SHORT_CONTEXT
    size = _SHORT if is_short else _LONG
    size = replace(size, facts=min(size.facts, max(questions)))
    if is_short and not settings.quick and settings.document is None:
        say(
            f"the model has a context of {loaded.context_length:,} tokens: the document is one of "
            f"{size.words:,} words with {size.facts + size.examples} facts"
        )
    hay = haystack(size, settings.document, settings.facts)
    different = min(max(questions), len(hay.asked))
    asked = [Prompt(hay.prompt(i), own=hay.about(i).question) for i in range(different)]
    distinct = [list(ids) for ids in tokenise(asked, tokenizer)]
    prompts = [distinct[i % len(distinct)] for i in range(max(questions))]
    job = _Job(hay, prompts, tokenizer)
    where = {"facts": len(hay.asked), "prompt_tokens": max(map(len, distinct))}
    for way in WAYS:
        give_memory_back()
        config = EngineConfig(max_sequences=max(questions))
        tree = tree_of(config.block_size, way.levels)
        engine = open_engine(Setting(loaded, tokenizer, config), tree=tree, costs=way.costs)
        engine.check(*job.requests(len(distinct)))
        if not way.has_attention:
            leave_attention_out(engine)
        for count in questions:
            found = _answered(way, job, count, engine, settings.repeats)
            yield {"questions": count, **where, **found}
        del engine


def _answered(way: Way, job: _Job, count: int, engine: Engine, repeats: int) -> Row:
    """Seconds of decoding by one way, and the share of the answers that are right."""
    row: Row = {}
    fit = requests_that_fit(engine, job.requests(count), way.levels, job.output)
    if fit < count:
        say(
            f"{way.name}: {count:,} questions do not fit; the largest batch that does is {fit:,}, "
            "and the others follow"
        )
        row[f"{way.key}_batch"] = fit
    runs = [_run(job, count, engine) for _ in range(1 + repeats)][1:]
    times = [seconds for seconds, _ in runs]
    row[way.key], row[f"{way.key}_spread"] = fmean(times), stdev(times) if repeats > 1 else 0.0
    if way.has_attention:
        row[f"{way.key}_accuracy"] = job.accuracy(runs[-1][1])
    return row


def _run(job: _Job, count: int, engine: Engine) -> tuple[float, dict[int, str]]:
    """Seconds of decoding all questions, a GPU's own where there is one, and what was drawn."""
    engine.reset_prefix_cache()
    clock = PhaseClock(engine) if engine.model.device.type == "cuda" else None
    before = engine.stats.decode_seconds
    with clock or nullcontext():
        texts = {done.request.key: done.text or "" for done in engine.generate(job.requests(count))}
    spent = (
        engine.stats.decode_seconds - before if clock is None else clock.seconds()["decode_seconds"]
    )
    return spent, texts


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw seconds over questions, by each way."""
    series = [
        Series(way.name, [(r["questions"], r[way.key]) for r in rows if r.get(way.key)])
        for way in WAYS
    ]
    title = f"Questions about {rows[0]['prompt_tokens']:,} tokens"
    return [Chart("longdoc", title, "questions", "seconds", series, x_log=True, y_log=True)]


EXPERIMENT = Experiment(
    paper=HYDRAGEN,
    machine="Yi-6B-200k on four A100-40GB, a document of 19,947 tokens",
    figures=(
        Figure("section 4.3", "256 questions", "less time than FlashAttention takes for 64"),
        Figure("section 4.3", "Hydragen's time", "within 60% of the one without attention"),
    ),
    columns=(
        Column("questions", "questions"),
        Column("prompt_tokens", "prompt tokens"),
        Column("sharegen", "sharegen s", 3, "sharegen_spread"),
        Column("each", "read by each row s", 3, "each_spread"),
        Column("nothing", "nothing shared s", 3, "nothing_spread"),
        Column("nothing_batch", "its batch"),
        Column("ceiling", "no attention s", 3, "ceiling_spread"),
        Column("sharegen_accuracy", "accuracy", 3),
        Column("nothing_accuracy", "nothing shared: accuracy", 3),
    ),
    rows=rows,
    charts=charts,
    takes=("model", "document", "facts", "questions"),
    point=("questions",),
)
