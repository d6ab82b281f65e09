"""One job through sharegen and through transformers' own `generate()`, in one run.

`generate()` is used as somebody careful would: prompts sorted by length so that little is padded,
all samples of a prompt by `num_return_sequences`, the batch size that serves it best. Both sides
have the same weights in memory, the same prompts, dtype and temperature; and every sample is
exactly as long as every other, EOS or not, so that neither side's draws decide its speed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig, PreTrainedModel

from sharegen.common.cores import available_cores
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.config import MAX_SEQUENCES, EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.opening import open_engine
from sharegen.engine.parallel.place import places
from sharegen.errors import UsageError
from sharegen.job.sharing_plan import most_blocks
from sharegen.workload.configuration import resolve
from sharegen.workload.problem import load_problems
from sharegen.workload.prompt import tokenise

BATCHES = (20, 80, 320)
_WARM_UP = 4  # tokens


@dataclass(frozen=True)
class Pace:
    """Tokens drawn, in how many seconds, prefill included."""

    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def bench_generate(
    model: str | None = None,
    dataset: str | None = None,
    few_shot_file: str | None = None,
    *,
    problems: int = 64,
    samples: int = 20,
    max_tokens: int = 128,
    temperature: float = 1.0,
    batches: Sequence[int] = BATCHES,
    limit_batches: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    max_sequences: int | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Time one job both ways; prints a table to stderr and returns the numbers.

    model, dataset, few_shot_file: as `sharegen run self-consistency` takes them.
    batches: sequences in one call of generate(). limit_batches: time only so many calls of each
    size, spread evenly over the prompt lengths, instead of the whole job. temperature: above 0.
    workers: engines of sharegen, whose start is not timed; by default as many as pay on a CPU, as
    in a long job, and one on a GPU. max_sequences: of each.
    """
    flags: dict[str, Any] = {"dataset": {"limit": problems}}
    if model is not None:
        flags["model"] = model
    if few_shot_file is not None:
        flags["few_shot"] = {"file": few_shot_file}
    configuration = resolve("self-consistency", dataset, flags)
    assert configuration.model is not None
    tokenizer = load_tokenizer(configuration.model)
    prompts = [
        list(ids) for ids in tokenise([p.prompt for p in load_problems(configuration)], tokenizer)
    ]
    if len(prompts) < problems:
        raise UsageError(f"--problems {problems}: the dataset has only {len(prompts)}")
    loaded = load_model(configuration.model, device=device, dtype=dtype)
    loaded.release()  # the module has its own attention again
    module = loaded.model
    longest = max(map(len, prompts)) + max_tokens
    loaded.check_length(longest)

    config = config_for(load_model(module), prompts, samples, max_tokens, max_sequences)
    setting = Setting(configuration.model, None, config, device=device, dtype=dtype)  # type: ignore[arg-type]
    if workers is not None:
        places(setting, workers)  # too many are refused before minutes of measuring

    module.set_attn_implementation("sdpa")
    theirs = {
        size: _time_generate(module, prompts, samples, max_tokens, temperature, size, limit_batches)
        for size in batches
    }
    paces = {size: pace for size, pace in theirs.items() if pace is not None}
    if not paces:
        raise UsageError("generate() runs out of memory at every batch size: ask for smaller ones")
    best = max(paces, key=lambda size: paces[size].tokens_per_second)
    job = GenerationJob(prompts, samples, max_tokens, temperature)
    on_gpu = module.device.type == "cuda"
    if workers == 1 or (workers is None and (on_gpu or available_cores() == 1)):
        workers, setting = 1, replace(setting, model=module)
    with closing(open_engine(setting, workers)) as engine:
        if isinstance(engine, Driver):
            engine.gather()
            workers = len(engine.pids)
        ours, stats = time_sharegen(engine, job, module.device)
    result = {
        "bench": "generate",
        "model": configuration.model,
        "device": torch.cuda.get_device_name() if module.device.type == "cuda" else "cpu",
        "dtype": str(module.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "workers": workers,
        "problems": problems,
        "samples": samples,
        "max_tokens": max_tokens,
        "longest_prompt": longest - max_tokens,
        "limit_batches": limit_batches,
        "generate_tokens_per_second": {
            size: None if pace is None else round(pace.tokens_per_second, 1)
            for size, pace in theirs.items()
        },
        "best_batch": best,
        "sharegen_tokens_per_second": round(ours.tokens_per_second, 1),
        **stats,
        "ratio": round(ours.tokens_per_second / paces[best].tokens_per_second, 2),
    }
    _show(result, theirs, ours)
    return result


def _time_generate(
    module: PreTrainedModel,
    prompts: list[list[int]],
    samples: int,
    max_tokens: int,
    temperature: float,
    batch: int,
    limit_batches: int | None,
) -> Pace | None:
    """The pace of generate() with `batch` sequences a call; None where memory does not suffice."""
    calls = list(_calls(sorted(prompts, key=len), samples, batch))
    if limit_batches is not None and limit_batches < len(calls):
        step = len(calls) / limit_batches
        calls = [calls[int((i + 0.5) * step)] for i in range(limit_batches)]
    try:
        _generate(module, *calls[0], _WARM_UP, temperature)
        start = _now(module.device)
        tokens = sum(_generate(module, *call, max_tokens, temperature) for call in calls)
        return Pace(tokens, _now(module.device) - start)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None


def _calls(
    prompts: list[list[int]], samples: int, batch: int
) -> Iterator[tuple[list[list[int]], int]]:
    """Yield (prompts, samples of each) of every call; a prompt with more samples takes several."""
    if batch < samples:
        for prompt in prompts:
            for first in range(0, samples, batch):
                yield [prompt], min(batch, samples - first)
        return
    width = batch // samples
    for first in range(0, len(prompts), width):
        yield prompts[first : first + width], samples


def _generate(
    module: PreTrainedModel,
    prompts: list[list[int]],
    samples: int,
    max_tokens: int,
    temperature: float,
) -> int:
    """Make one call of generate(), padded on the left; returns the tokens drawn."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=module.device)
    mask = torch.tensor(
        [[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=module.device
    )
    how = GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max_tokens,
        num_return_sequences=samples,
        pad_token_id=0,
        eos_token_id=None,
    )
    own, module.generation_config = module.generation_config, GenerationConfig()
    try:
        with torch.inference_mode():
            output = module.generate(  # type: ignore[operator]
                ids, attention_mask=mask, generation_config=how
            )
    finally:
        module.generation_config = own
    drawn = output[:, width:]
    assert drawn.shape == (len(prompts) * samples, max_tokens), "generate() stopped early"
    return drawn.numel()


@dataclass(frozen=True)
class GenerationJob:
    """A job of so many samples of every prompt, all of the same length."""

    prompts: list[list[int]]
    samples: int
    max_tokens: int
    temperature: float

    def draw(self, engine: Engine | Driver, max_tokens: int) -> int:
        """Draw the samples, and return the number of tokens."""
        params = SamplingParams(
            temperature=self.temperature, max_tokens=max_tokens, ignore_eos=True
        )
        samples = range(self.samples)
        requests = [Request(i, ids, params, samples) for i, ids in enumerate(self.prompts)]
        return sum(len(completion.token_ids) for completion in engine.generate(requests))


def config_for(
    loaded: LoadedModel,
    prompts: list[list[int]],
    samples: int,
    max_tokens: int,
    max_sequences: int | None,
) -> EngineConfig:
    """The configuration of an engine that has room for all of the job. Releases the model."""
    rows = max_sequences or MAX_SEQUENCES[loaded.device.type]
    size = EngineConfig().block_size
    blocks = most_blocks(PrefixTree.build(prompts, size), samples, max_tokens, rows)
    loaded.release()
    return EngineConfig(
        max_sequences=rows, kv_cache_memory=blocks * size * loaded.kv_bytes_per_token
    )


def time_sharegen(
    engine: Engine | Driver, job: GenerationJob, device: torch.device
) -> tuple[Pace, dict[str, Any]]:
    """Return the pace of the whole job, and what sharing saved of it."""
    job.draw(engine, _WARM_UP)
    engine.reset_prefix_cache()
    asked, computed = engine.stats.prompt_tokens_asked, engine.stats.prompt_tokens_computed
    start = _now(device)
    drawn = job.draw(engine, job.max_tokens)
    pace = Pace(drawn, _now(device) - start)
    assert drawn == len(job.prompts) * job.samples * job.max_tokens
    return pace, {
        "prompt_tokens_asked": engine.stats.prompt_tokens_asked - asked,
        "prompt_tokens_computed": engine.stats.prompt_tokens_computed - computed,
    }


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _show(result: dict[str, Any], theirs: dict[int, Pace | None], ours: Pace) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(f"{result['problems']} problems x {result['samples']} samples")
    for name in ("tokens", "seconds", "tokens/s"):
        table.add_column(name, justify="right")
    ways = {f"generate(), {size} sequences": pace for size, pace in theirs.items()}
    engines = "1 worker" if result["workers"] == 1 else f"{result['workers']} workers"
    for name, pace in {**ways, f"sharegen, {engines}": ours}.items():
        if pace is None:
            table.add_row(name, "out of memory")
        else:
            numbers = (f"{pace.tokens:,}", f"{pace.seconds:,.1f}", f"{pace.tokens_per_second:,.0f}")
            table.add_row(name, *numbers)
    console = Console(file=sys.stderr, highlight=False)
    console.print(table)
    console.print(
        f"{result['ratio']:,.1f} times as fast as the best generate(); of "
        f"{result['prompt_tokens_asked']:,} prompt tokens {result['prompt_tokens_computed']:,} "
        "were computed",
        soft_wrap=True,
    )
