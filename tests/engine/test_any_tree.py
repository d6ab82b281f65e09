"""The bits of a sample depend neither on the batch nor on the tree of prompts (float32, CPU)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sharegen.engine.core.request import Request, SamplingParams
from tests.engine.jobs import forest, judge, loaded, make_engine, random_tokens, run

PARAMS = SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True, logprobs=0)


def prompts() -> list[list[int]]:
    """Some that share half of what they are, and longer than a tile."""
    import random

    rng = random.Random(7)
    long = random_tokens(90, rng)
    more = [long[:cut] + random_tokens(20 + cut % 7, rng) for cut in (40, 64, 71, 90)]
    return [*forest(), *more]


def bits_of(requests: list[Request], name: str = "llama", **config: int):
    ran = run(make_engine(loaded(name), deterministic=True, any_tree=True, **config), requests)
    return ran.completions


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_alone_and_beside_others(name: str) -> None:
    together = bits_of([Request(i, p, PARAMS, range(2)) for i, p in enumerate(prompts())], name)
    for i, prompt in enumerate(prompts()):
        alone = bits_of([Request(i, prompt, PARAMS, range(2))], name)
        for key, one in alone.items():
            assert one.token_ids == together[key].token_ids
            assert one.logprobs == together[key].logprobs


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_prompt_logprobs_are_what_was_drawn(name: str) -> None:
    asked = [Request(i, p, PARAMS, range(1)) for i, p in enumerate(prompts())]
    drawn = bits_of(asked, name)
    again = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    texts = [
        Request(i, [*p, *drawn[i, 0].token_ids], again, range(1)) for i, p in enumerate(prompts())
    ]
    for (i, _), scored in bits_of(texts, name).items():
        of_text = scored.prompt_logprobs
        assert of_text is not None
        assert of_text[len(prompts()[i]) :] == drawn[i, 0].logprobs


def test_results_are_the_models() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True)
    done = bits_of([Request(i, p, params, range(2)) for i, p in enumerate(prompts())])
    for completion in done.values():
        judge(completion, "llama")


def test_the_kernel_has_the_property(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from sharegen.engine.execute.absolute_attention import AbsoluteAttention

    made = AbsoluteAttention.__init__

    def by_kernel(self: AbsoluteAttention, *arguments: Any) -> None:
        made(self, *arguments)
        self._uses_kernel = True

    monkeypatch.setattr(AbsoluteAttention, "__init__", by_kernel)
    few = replace(PARAMS, max_tokens=4)
    of_four = prompts()[-4:]
    drawn = bits_of([Request(i, p, few, range(2)) for i, p in enumerate(of_four)])
    for completion in drawn.values():
        assert len(completion.token_ids) == 4
    alone = bits_of([Request(2, of_four[2], few, range(1))])
    assert alone[2, 0].logprobs == drawn[2, 0].logprobs
    again = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    text = [*of_four[2], *drawn[2, 0].token_ids]
    scored = bits_of([Request(0, text, again, range(1))])[0, 0].prompt_logprobs
    assert scored is not None and scored[len(of_four[2]) :] == drawn[2, 0].logprobs
    for i in range(len(of_four)):
        judge(drawn[i, 0], "llama")
