"""One step's sampling on this GPU: milliseconds for each kind of filter, beside eager torch.

`python -m benchmarks sampling --rows 1024 --vocab 128256` prints a table and, last, one JSON
line. Times are medians over replays of a CUDA graph. Two kinds of logits: `flat`, as random weights
make them (the nucleus is tens of thousands of tokens), and `peaked`, as trained models do (a few).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sharegen.engine.core.random_key import row_key
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.sample.sampler import SamplingState, sample
from sharegen.errors import UsageError

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "top_k": {"temperature": 0.7, "top_k": 50},
    "top_p": {"temperature": 0.7, "top_p": 0.95},
    "min_p": {"temperature": 0.7, "min_p": 0.05},
    "all filters": {"temperature": 0.7, "top_k": 100, "top_p": 0.95, "min_p": 0.01},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.1, "presence_penalty": 0.3},
    "bias": {"temperature": 0.7, "logit_bias": {5: 1.0, 7: -3.0}, "min_tokens": 4},
}


def make_logits(kind: str, rows: int, vocab_size: int, dtype: torch.dtype) -> Tensor:
    logits = torch.randn(rows, vocab_size, device="cuda", dtype=torch.float32)
    if kind == "peaked":
        # A power law over a few hundred tokens, the rest far below.
        places = torch.rand(rows, 300, device="cuda").mul(vocab_size).long()
        ranks = torch.arange(1, 301, device="cuda").log()
        logits.scatter_(1, places, (14 - 2 * ranks).expand(rows, -1))
    return logits.to(dtype)


def make_state(rows: int, vocab_size: int, options: dict[str, Any]) -> SamplingState:
    state = SamplingState(rows, vocab_size, "cuda", eos_token_ids=(1,))
    params = [SamplingParams(**options)] * rows
    prompt = list(range(1000, 2000))
    keys = [row_key(0, i, 0) for i in range(rows)]
    state.set_rows(range(rows), params, keys, [prompt] * rows)
    return state


def milliseconds(run: Callable[[], object], repeats: int = 20) -> float:
    """Return the median time of one replay of `run` as a CUDA graph."""
    for _ in range(3):
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def softmax_and_exponential(logits: Tensor) -> Tensor:
    """What is usually done without filters: probabilities over exponential noise."""
    probs = (logits.float() / 0.7).softmax(-1)
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(-1)


def sorted_top_p(logits: Tensor) -> Tensor:
    """Do top-p as it is usually done: sort the vocabulary."""
    ordered, index = (logits.float() / 0.7).sort(-1)
    probs = ordered.softmax(-1)
    probs = probs.masked_fill(probs.cumsum(-1) <= 0.05, 0.0)
    best = probs.div_(torch.empty_like(probs).exponential_()).argmax(-1, keepdim=True)
    return index.gather(1, best)


def bench_sampling(rows: int, vocab: int, dtype_name: str) -> dict[str, Any]:
    """Milliseconds of each setting for logits of [rows, vocab]; prints a table to stderr.

    Raises UsageError where there is no GPU.
    """
    if not torch.cuda.is_available():
        raise UsageError("this benchmark times a GPU and finds none")
    dtype = getattr(torch, dtype_name)
    results: dict[str, dict[str, float]] = {}
    for kind in ("flat", "peaked"):
        logits = make_logits(kind, rows, vocab, dtype)
        positions = torch.full((rows,), 3, device="cuda")
        history = torch.full((rows, 512), -1, device="cuda")
        history[:, :3] = torch.tensor([5, 6, 7], device="cuda")
        times = results[kind] = {}
        for name, setting in SETTINGS.items():
            state = make_state(rows, vocab, setting)
            features = state.features()
            times[name] = milliseconds(
                partial(sample, logits, state, positions, history=history, features=features)
            )
        for usual in (softmax_and_exponential, sorted_top_p):
            times[f"torch: {usual.__name__}"] = milliseconds(partial(usual, logits))
    bytes_once = rows * vocab * dtype.itemsize
    print(f"{rows} rows of {vocab} {dtype_name}, ms", file=sys.stderr)
    for name in results["flat"]:
        cells = "".join(f"{results[kind][name]:10.3f}" for kind in results)
        print(f"{name:34s}{cells}", file=sys.stderr)
    asked = {"rows": rows, "vocab": vocab, "dtype": dtype_name}
    return {"bench": "sampling", **asked, "bytes_once": bytes_once, "milliseconds": results}
