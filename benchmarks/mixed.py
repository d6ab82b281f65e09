"""`python -m benchmarks mixed`: what settings of their own cost the rows of a decoding step.

One job of random prompts through one engine: all requests sampled plainly (a temperature alone),
then each of the settings for all of them, then all settings mixed in one batch. A step's time is
the whole step's, forward and host included: what somebody who waits for the job sees.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from sharegen.bench.shapes import random_model
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.checkpoint.source import resolve_device
from sharegen.engine.model.load import load_model
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.opening import open_engine

PLAIN: dict[str, Any] = {"temperature": 0.7}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.95},
    "min_p": {"min_p": 0.05},
    "top_k, top_p, min_p": {"top_k": 100, "top_p": 0.95, "min_p": 0.01},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "presence, frequency": {"presence_penalty": 0.3, "frequency_penalty": 0.2},
    "logit_bias": {"logit_bias": {5: 1.0, 7: -3.0}},
    "bad_words": {"bad_words": ["11 12", "13"]},
    "min_tokens": {"min_tokens": 4, "stop_token_ids": [3]},
    "logprobs": {"logprobs": 5},
}
_SAMPLES = 4  # of each request


class _Numbers:
    """The tokenizer of random weights: a text is its token ids."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [int(token) for token in text.split()]

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        return " ".join(map(str, token_ids))


def bench_mixed(
    shape: str,
    *,
    rows: int,
    prompt: int = 256,
    output: int = 64,
    repeats: int = 3,
    device: str = "cuda",
    dtype: str = "bfloat16",
    compile_model: bool = True,
) -> dict[str, Any]:
    """Milliseconds of a decoding step of `rows` sequences, by setting; prints a table to stderr.

    shape: a known shape or a model folder (its config; weights are random). prompt: tokens that
    all requests share, with 16 of their own after; output: tokens of every sample. repeats: runs of
    each kind, in turn, after one that compiles and captures; the median counts.
    """
    loaded = load_model(random_model(shape, resolve_device(device), getattr(torch, dtype)))
    config = EngineConfig(max_sequences=rows, compile=compile_model)
    engine = open_engine(Setting(loaded, _Numbers(), config))
    kinds = {"plain": [PLAIN], "mixed": [PLAIN | setting for setting in SETTINGS.values()]}
    kinds |= {name: [PLAIN | setting] for name, setting in SETTINGS.items()}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(repeats + 1):
        for name, settings in kinds.items():
            seconds = _step_seconds(engine, _requests(engine, settings, rows, prompt, output))
            if turn:
                times[name].append(1e3 * seconds)
    step_ms = {name: statistics.median(of_kind) for name, of_kind in times.items()}
    overhead = {name: taken / step_ms["plain"] - 1 for name, taken in step_ms.items()}
    for name, taken in step_ms.items():
        print(f"{name:>22}  {taken:9.3f} ms  {overhead[name]:+7.1%}", file=sys.stderr)
    return {
        "bench": "mixed", "shape": shape, "vocab_size": loaded.vocab_size, "rows": rows,
        "prompt": prompt, "output": output, "dtype": dtype, "device": str(loaded.device),
        "step_ms": step_ms, "overhead": overhead["mixed"],
    }  # fmt: skip


def _requests(
    engine: Engine, settings: Sequence[dict[str, Any]], rows: int, prompt: int, output: int
) -> list[Request]:
    """Enough requests for all rows; the settings take turns."""
    rng = random.Random(0)
    size = engine.model.vocab_size
    shared = [rng.randrange(20, size) for _ in range(prompt)]
    requests = []
    for index in range(-(-rows // _SAMPLES)):
        params = SamplingParams(
            max_tokens=output, ignore_eos=True, **settings[index % len(settings)]
        )
        own = [rng.randrange(20, size) for _ in range(16)]
        samples = range(min(_SAMPLES, rows - index * _SAMPLES))
        requests.append(Request(index, shared + own, params, samples))
    return requests


def _step_seconds(engine: Engine, requests: list[Request]) -> float:
    before = asdict(engine.stats)
    for _ in engine.generate(requests):
        pass
    steps = engine.stats.decode_steps - before["decode_steps"]
    return (engine.stats.decode_seconds - before["decode_seconds"]) / steps
