"""A token's last bits depend on no other token of its batch, where experts multiply few rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from sharegen.engine.core.request import SamplingParams
from sharegen.engine.model.cpu_experts import _added
from sharegen.engine.model.load import load_model
from tests.engine.jobs import forest, loaded, make_engine, requests_of, run
from tests.engine.tiny_models import TINY, make_tiny

SAMPLED = SamplingParams(temperature=1.1, max_tokens=9, ignore_eos=True)


def has_experts(config: Mapping[str, Any]) -> bool:
    parts = [part for part in config.values() if isinstance(part, Mapping)]
    return any("experts" in key for key in config) or any(map(has_experts, parts))


MIXTURES = [name for name, (_, config) in TINY.items() if has_experts(config)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.turn(8)
def test_draws_do_not_depend_on_the_batch(name: str) -> None:
    """To the bit, log-probabilities included: with few rows an expert has one token, or two."""
    requests = requests_of(forest(), SAMPLED, 3)
    expected = run(make_engine(loaded(name)), requests).results
    few = make_engine(loaded(name), blocks=60, max_sequences=7)
    assert run(few, requests).results == expected


def test_every_expert_that_has_tokens_has_enough() -> None:
    for seed in range(50):
        torch.manual_seed(seed)
        chosen = torch.rand(32, 16).topk(3).indices
        added = _added(chosen)
        count = torch.cat([chosen, added]).flatten().bincount(minlength=16)
        assert torch.equal(count > 0, chosen.flatten().bincount(minlength=16) > 0)
        assert not (count % 4).any() and len(added) % 32 == 0


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "dbrx", "jetmoe"])
def test_rows_of_zeros_change_nothing_and_go_with_the_model(name: str) -> None:
    model = make_tiny(name)
    ids = torch.arange(32)[None]
    expected = model(input_ids=ids, use_cache=False).logits
    ours = load_model(model)
    with ours.ours():
        assert any("forward" in vars(module) for module in model.modules())
    ours.release()
    assert not any("forward" in vars(module) for module in model.modules())
    assert torch.equal(model(input_ids=ids, use_cache=False).logits, expected)
