"""Engines for measurements: the same tokens, however what is shared is read and stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sharegen.bench.engines import Engines
from sharegen.bench.shapes import Workload
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.kernels.cost import EACH_ROW
from tests.engine.tiny_models import tiny_config


@pytest.mark.slow
def test_every_way_draws_the_same(tmp_path: Path) -> None:
    tiny_config("llama").save_pretrained(tmp_path)
    engines = Engines(str(tmp_path), "cpu", torch.float32)
    params = SamplingParams(temperature=1.0, max_tokens=12, seed=3, ignore_eos=True)
    drawn = []
    for levels, costs in ((2, None), (2, EACH_ROW), (1, EACH_ROW), (0, None)):
        engine = engines.make(5, levels, costs)
        prompts = Workload(40, 20, 3, 2, 12).prompts(engine.model.vocab_size)
        requests = [Request(i, prompt, params, range(2)) for i, prompt in enumerate(prompts)]
        found = engine.generate(requests)
        drawn.append(sorted((done.request.key, done.sample, done.token_ids) for done in found))
        assert (engine.stats.steps_by_levels.keys() == {""}) == (costs is EACH_ROW)
    assert drawn[0] == drawn[1] == drawn[2] == drawn[3]
