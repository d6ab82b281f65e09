"""What a ceiling leaves out, and what it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from sharegen.bench.ceiling import attention_left_out
from sharegen.bench.decode import measure
from sharegen.bench.engines import Engines
from sharegen.bench.shapes import workload
from sharegen.engine.execute.states import StatePool
from sharegen.engine.model.states.in_place import Key
from tests.engine.tiny_models import tiny_config


def copied(pool: StatePool) -> list[dict[Key, torch.Tensor]]:
    return [{key: each.clone() for key, each in of.items()} for of in pool.tensors]


def are_alike(some: Sequence[Mapping[Key, torch.Tensor]], pool: StatePool) -> bool:
    pairs = zip(some, pool.tensors, strict=True)
    return all(torch.equal(one[key], other[key]) for one, other in pairs for key in one)


@pytest.mark.slow
def test_projections_of_mixers_belong_to_the_ceiling(tmp_path: Path) -> None:
    """They are computed in each step of decoding, and no state changes."""
    tiny_config("lfm2").save_pretrained(tmp_path)
    engine = Engines(str(tmp_path), "cpu", torch.float32).make(12, 2)
    calls = Counter[str]()
    for name, module in engine.model.model.named_modules():
        if name.endswith("conv.in_proj"):
            module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    assert engine.runner.states is not None
    pool, job = engine.runner.states.pool, workload("8,4,3,4,6")
    before = copied(pool)
    with attention_left_out(engine):
        steps = measure(engine, job, 2, 0.0)["decode_steps"]
    assert calls and min(calls.values()) >= steps > 0
    assert are_alike(before, pool)
    measure(engine, job, 2, 0.0)
    assert not are_alike(before, pool)
