"""Many questions over one long document run in memory for one document."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import LlamaForCausalLM

from sharegen.engine.core.request import SamplingParams
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from tests.engine.jobs import make_engine, random_tokens, requests_of, run
from tests.engine.tiny_models import tiny_config

QUESTION, ANSWER = 24, 6
BLOCK = 16


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    config = tiny_config("llama")
    config.max_position_embeddings = 32_768
    torch.manual_seed(0)
    return load_model(LlamaForCausalLM._from_config(config, attn_implementation="eager").eval())


@pytest.mark.parametrize(
    ("length", "questions"),
    [(6_000, 64), pytest.param(20_000, 1_024, marks=[pytest.mark.slow, pytest.mark.turn(10)])],
)
@pytest.mark.slow
def test_the_document_is_stored_and_computed_once(
    model: LoadedModel, length: int, questions: int
) -> None:
    rng = random.Random(0)
    document = random_tokens(length, rng)
    prompts = [document + random_tokens(QUESTION, rng) for _ in range(questions)]
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    rows = 32
    # One document, and two blocks of a question and one of an answer for each row.
    blocks = length // BLOCK + 3 * rows + 2 * rows
    engine = make_engine(
        model, blocks=blocks, block_size=BLOCK, max_sequences=rows, prefill_tokens=512
    )
    ran = run(engine, requests_of(prompts, params))
    assert len(ran.completions) == questions
    assert ran.stats.peak_blocks <= blocks and ran.stats.preemptions == 0
    assert ran.stats.prompt_tokens_asked == questions * (length + QUESTION)
    at_first = sum(p[length] == q[length] for p in prompts for q in prompts) - questions
    assert ran.stats.prompt_tokens_computed <= length + questions * QUESTION + at_first
    # The last question of all, alone: neighbours changed nothing.
    alone = run(
        make_engine(model, blocks=blocks, block_size=BLOCK), requests_of(prompts[:1], params)
    )
    assert alone.tokens[0, 0] == ran.tokens[0, 0]
