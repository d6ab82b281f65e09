"""The bits of a sample depend neither on the batch nor on the tree of prompts (float32, CPU)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.errors import UsageError
from tests.engine.jobs import forest, judge, loaded, make_engine, random_tokens, run
from tests.interpreter import rows_by_themselves

PARAMS = SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True, logprobs=0)


def prompts() -> list[list[int]]:
    """Some that share half of what they are, and longer than a tile."""
    rng = random.Random(7)
    long = random_tokens(90, rng)
    more = [long[:cut] + random_tokens(20 + cut % 7, rng) for cut in (40, 64, 71, 90)]
    return [*forest(), *more]


def bits_of(
    requests: list[Request], name: str = "llama", any_tree: bool = True
) -> dict[tuple[int, int], Completion]:
    engine = make_engine(loaded(name), deterministic=True, any_tree=any_tree)
    return run(engine, requests).completions


@pytest.mark.turn(4)
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


@pytest.mark.slow
@pytest.mark.turn(5)
def test_the_kernel_has_the_property(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from sharegen.engine.execute.absolute_attention import AbsoluteAttention

    made = AbsoluteAttention.__init__

    def by_kernel(self: AbsoluteAttention, *arguments: Any) -> None:
        made(self, *arguments)
        self._uses_kernel = True

    monkeypatch.setattr(AbsoluteAttention, "__init__", by_kernel)
    two = prompts()[-2:]
    few = replace(PARAMS, max_tokens=3)
    again = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with rows_by_themselves():
        drawn = bits_of([Request(i, p, few, range(2)) for i, p in enumerate(two)])
        alone = bits_of([Request(1, two[1], few, range(1))])
        text = [*two[1], *drawn[1, 0].token_ids]
        scored = bits_of([Request(0, text, again, range(1))])[0, 0].prompt_logprobs
    assert alone[1, 0].logprobs == drawn[1, 0].logprobs
    assert scored is not None and scored[len(two[1]) :] == drawn[1, 0].logprobs
    for completion in drawn.values():
        judge(completion, "llama")


def test_refused_by_name() -> None:
    with pytest.raises(UsageError, match="any_tree: it is a step beyond the deterministic mode"):
        make_engine(loaded("llama"), any_tree=True)
    with pytest.raises(UsageError, match="any_tree: sliding windows"):
        make_engine(loaded("gemma2"), deterministic=True, any_tree=True)
