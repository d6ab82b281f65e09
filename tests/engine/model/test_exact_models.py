"""Every architecture of the table against its own modelling code: the oracle of the engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model import interface
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.self_check import TESTED, DenseContext
from sharegen.engine.model.states.mixers import WholeSequences
from tests.engine.jobs import first_difference_is_a_tie
from tests.engine.tiny_models import HYBRIDS, TABLE, TINY, make_tiny

NEW_TOKENS = 12


_SLOW_HYBRIDS = set(HYBRIDS) - {"jamba", "qwen3_next"}


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name in _SLOW_HYBRIDS else [])
        for name in sorted(TINY)
    ]
)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return make_tiny(request.param)


@pytest.fixture
def loaded(model: PreTrainedModel) -> Iterator[LoadedModel]:
    loaded = load_model(model)
    yield loaded
    loaded.release()


def random_ids(count: int, generator: torch.Generator) -> list[int]:
    return torch.randint(3, 128, (count,), generator=generator).tolist()


@torch.no_grad()
@pytest.mark.turn(5)
def test_logits_of_shuffled_rows_equal_eager_attention(model: PreTrainedModel) -> None:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.tensor(random_ids(length, generator)) for length in (29, 1, 12)]
    wanted = torch.cat([model(input_ids=ids[None], use_cache=False).logits[0] for ids in prompts])
    ids = torch.cat(prompts)
    position = torch.cat([torch.arange(len(prompt)) for prompt in prompts])
    sequence = torch.cat([torch.full((len(prompt),), i) for i, prompt in enumerate(prompts)])
    order = torch.randperm(len(ids), generator=generator)
    rows = torch.tensor([41, 3, 3, 20])
    loaded = load_model(model)
    context = DenseContext(loaded.layers, sequence[order], position[order])
    states = WholeSequences(loaded.mixers, sequence[order], position[order])
    with interface.active(context, states):
        logits = loaded.forward(ids[order], position[order], rows)
    assert logits.shape == (4, loaded.vocab_size)
    assert (logits - wanted[order][rows]).abs().max() <= 1e-4
    loaded.release()
    again = model(input_ids=prompts[0][None], use_cache=False).logits[0]
    assert torch.equal(again, wanted[:29])


@pytest.mark.turn(8)
def test_greedy_tokens_equal_generate(
    model: PreTrainedModel, loaded: LoadedModel, record_property: pytest.RecordProperty
) -> None:
    """Branches at two levels, prompts that are prefixes, no common root, four slots for six."""
    generator = torch.Generator().manual_seed(3)
    root = random_ids(9, generator)
    inner = root + random_ids(7, generator)
    prompts = [
        inner + random_ids(3, generator),
        inner + random_ids(6, generator),
        inner,
        root + random_ids(5, generator),
        root + random_ids(12, generator),
        random_ids(4, generator),
    ]
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    requests = [Request(i, prompt, params, (0,)) for i, prompt in enumerate(prompts)]
    config = EngineConfig(
        max_sequences=4,
        kv_cache_memory=(loaded.kv_bytes_per_token or 4) * 4 * 40 + 14 * loaded.state_bytes,
        state_slots=14,
        block_size=4,
        prefill_tokens=16,
    )
    tokens = {
        completion.request.key: completion.token_ids
        for completion in Engine(loaded, None, config).generate(requests)
    }
    loaded.release()
    model.generation_config.eos_token_id = None
    ties = 0
    for key, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        wanted = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False)
        expected = wanted[0, len(prompt) :].tolist()
        assert len(tokens[key]) == len(expected) == NEW_TOKENS
        if tokens[key] != expected:
            assert first_difference_is_a_tie(model, prompt, tokens[key], expected), key
            ties += 1
    record_property("ties", ties)


def test_the_tested_architectures_are_those_of_the_table() -> None:
    assert {model_type for model_type, _ in TABLE.values()} == TESTED
    assert len({model_type for model_type, _ in TINY.values()}) >= 35
