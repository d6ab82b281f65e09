"""On a GPU: the bits of a sample do not depend on the tree of prompts (bfloat16)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaConfig

from sharegen.bench.engines import Engines
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.engine import Engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

_VOCABULARY = 4096
_SAMPLES = 16
PARAMS = SamplingParams(temperature=1.0, max_tokens=100, ignore_eos=True, logprobs=0)


def prompts() -> list[list[int]]:
    """Eight that share from none to 700 tokens, which end within tiles and at their ends."""
    rng = random.Random(3)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, _VOCABULARY) for _ in range(count)]

    shared = tokens(700)
    return [shared[:cut] + tokens(30 + cut % 13) for cut in (0, 40, 64, 200, 333, 512, 640, 700)]


@pytest.fixture(scope="module", params=[False, True], ids=["eager", "compiled"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("model")
    LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=1024, intermediate_size=2816, num_hidden_layers=6,
        num_attention_heads=16, num_key_value_heads=4, head_dim=64, max_position_embeddings=4096,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)  # fmt: skip
    engines = Engines(
        str(folder), "cuda", torch.bfloat16, compile_model=request.param, kv_cache_memory=2 << 30
    )
    made = engines.make(256, None, deterministic=True, any_tree=True)
    yield made
    made.close()


def draw(engine: Engine, requests: list[Request]) -> dict[tuple[int, int], Completion]:
    engine.reset_prefix_cache()
    return {(done.request.key, done.sample): done for done in engine.generate(requests)}


def together(engine: Engine) -> dict[tuple[int, int], Completion]:
    return draw(engine, [Request(i, p, PARAMS, range(_SAMPLES)) for i, p in enumerate(prompts())])


def test_alone_and_beside_others(engine: Engine) -> None:
    drawn = together(engine)
    other = [
        key
        for i, prompt in enumerate(prompts())
        for key, alone in draw(engine, [Request(i, prompt, PARAMS, range(2))]).items()
        if (alone.token_ids, alone.logprobs) != (drawn[key].token_ids, drawn[key].logprobs)
    ]
    assert not other, f"{len(other)} of {2 * len(prompts())} samples"


def test_prompt_logprobs_are_what_was_drawn(engine: Engine) -> None:
    drawn = together(engine)
    again = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    texts = [
        Request(i, [*p, *drawn[i, 0].token_ids], again, range(1)) for i, p in enumerate(prompts())
    ]
    parted = 0
    for (i, _), scored in draw(engine, texts).items():
        mine, of_text = drawn[i, 0].logprobs, scored.prompt_logprobs
        assert mine is not None and of_text is not None
        pairs = zip(mine, of_text[len(prompts()[i]) :], strict=True)
        parted += sum(one != other for one, other in pairs)
    assert parted == 0
