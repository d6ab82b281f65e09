"""Latent attention in both of its forms: own tokens as latents, and spread out over the heads.

    python -m benchmarks latents benchmarks/shapes/glm-4.7-flash

The same random weights, the same job, one form after the other in one process: how many sequences
fit, and how fast they are drawn. With --check a small job is drawn greedily in both forms, compiled
and not, and every token must be the same: give it a small shape and float32, whose sums in another
order do not draw another token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from sharegen.bench.decode import measure, rows_that_fit
from sharegen.bench.engines import Engines
from sharegen.bench.shapes import Workload, vocabulary, workload
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model import load
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.errors import UsageError

FORMS = ("latents", "spread")
_LEVELS = 2
_CHECKED = Workload(prefix=96, problem=24, problems=6, samples=3, output=24)


def bench_latents(
    shape: str, load_name: str, max_sequences: int, dtype: str, device: str, compile_model: bool
) -> Iterator[dict[str, Any]]:
    """The numbers of each form. Raises UsageError for a shape without latents."""
    for form in FORMS:
        yield _measured(shape, form, load_name, max_sequences, dtype, device, compile_model)


def _measured(
    shape: str, form: str, load_name: str, rows: int, dtype: str, device: str, compile_model: bool
) -> dict[str, Any]:
    """The numbers of one form, of whose engine nothing is left for the other's to lie beside."""
    job = workload(load_name)
    with _engine(shape, form, rows, dtype, device, compile_model) as engine:
        if form == "latents":
            _check_has_latents(engine, shape)
        said: dict[str, Any] = {"bench": "latents", "shape": shape, "form": form}
        said |= {"workload": load_name, "own_token_bytes": _own_token_bytes(engine)}
        said |= {"fitting_rows": rows_that_fit(engine, job, _LEVELS)}
        return said | measure(engine, job, _LEVELS, 0.7)


def same_tokens(shape: str, dtype: str, device: str, compiled: Sequence[bool]) -> dict[str, Any]:
    """How many greedy samples of both forms, compiled or not, differ from the first way's."""
    prompts = _CHECKED.prompts(vocabulary(shape))
    params = SamplingParams(temperature=0.0, max_tokens=_CHECKED.output, ignore_eos=True)
    first: list[list[int]] | None = None
    differing = {}
    for form in FORMS:
        for is_compiled in compiled:
            with _engine(shape, form, 64, dtype, device, is_compiled) as engine:
                if form == "latents":
                    _check_has_latents(engine, shape)
                requests = [Request(i, p, params, range(1)) for i, p in enumerate(prompts)]
                drawn = {done.request.key: done.token_ids for done in engine.generate(requests)}
            found = [list(drawn[i]) for i in range(len(prompts))]
            first = first or found
            way = f"{form}, {'compiled' if is_compiled else 'eager'}"
            differing[way] = sum(a != b for a, b in zip(found, first, strict=True))
    return {"bench": "latents", "shape": shape, "samples": len(prompts), "differing": differing}


@contextmanager
def _engine(
    shape: str, form: str, rows: int, dtype: str, device: str, compile_model: bool
) -> Iterator[Engine]:
    chosen = load.all_or_none if form == "latents" else _without_latents
    with mock.patch.object(load, "all_or_none", chosen):
        engines = Engines(shape, device, getattr(torch, dtype), compile_model=compile_model)
    engine = engines.make(rows, _LEVELS)
    try:
        yield engine
    finally:
        engine.close()


def _without_latents(layers: list[LayerSpec]) -> list[LayerSpec]:
    """Every layer as one whose keys and values are spread out, which is all that is known of it."""
    return [replace(layer, latent=None) for layer in layers]


def _check_has_latents(engine: Engine, shape: str) -> None:
    if not engine.runner.cache.latents:
        raise UsageError(f"shape {shape!r} keeps no latents here: there is one form of it")


def _own_token_bytes(engine: Engine) -> int:
    """What a token that one sample alone reads takes in the KV cache."""
    return engine.model.kv_bytes_per_token // engine.pool.blocks_per_full
