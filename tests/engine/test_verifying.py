"""A verified job: what it keeps, how near the model's own attention it is, and what it finds."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from sharegen.engine import verifying
from sharegen.engine.core.request import Completion, Request, SamplingParams, TokenLogprobs
from sharegen.engine.engine import Engine
from sharegen.engine.execute import kernel_attention
from sharegen.engine.model.compile.compiling import optimise
from sharegen.engine.model.compile.fusing import fuse_projections, unfuse
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.verifying import TOP, Verification, Verified
from sharegen.errors import UsageError
from sharegen.kernels import reference
from sharegen.kernels.cost import Decided
from tests.engine.jobs import engine_config, forest, make_engine, requests_of, run
from tests.engine.tiny_models import make_tiny

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
PARAMS = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=20, stop_token_ids=[5, 50])


def verified(
    model: LoadedModel, steps: int, params: SamplingParams = PARAMS, samples: int = 2
) -> Verified:
    """A whole job of prompts that share, and what the module makes of it."""
    return verified_by(make_engine(model), steps, params, samples)


def verified_by(
    engine: Engine, steps: int, params: SamplingParams = PARAMS, samples: int = 2
) -> Verified:
    verification = Verification(steps)
    requests = requests_of(forest(), verification.asking(params), samples)
    for completion in engine.generate(requests):
        verification.note(completion)
    engine.close()
    found = verification.check(engine.model)
    assert found is not None
    return found


# -- how near -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gpt2", "deepseek_v3"])
@pytest.mark.turn(5)
def test_differences_are_those_of_rounding(name: str) -> None:
    model = load_model(make_tiny(name))
    found = verified(model, 40)
    assert (found.steps, found.skipped, found.reference) == (40, 0, "sdpa")
    assert 0 < found.mean <= found.largest < 1e-4
    assert found.among_back_ends is not None and 0 < found.among_back_ends < 1e-4
    assert found.no_yardstick is None
    assert model.model.config._attn_implementation == "eager"  # as it came


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
@pytest.mark.turn(2)
def test_softcap_and_sinks_have_one_back_end(name: str) -> None:
    """Windows too: SDPA would leave out what it does not know, so it is no reference here."""
    found = verified(load_model(make_tiny(name)), 40)
    assert (found.steps, found.reference, found.among_back_ends) == (40, "eager", None)
    assert found.largest < 1e-4
    assert found.no_yardstick == "only eager computes this model's attention"


def eager_in_float32(
    module: torch.nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any,
    **how: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """The model's own eager attention, of which the result alone is rounded."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    out, _ = eager(module, q.float(), k.float(), v.float(), *rest, **how)
    return out.to(q.dtype), None


AttentionInterface.register("eager_in_float32", eager_in_float32)
AttentionMaskInterface.register("eager_in_float32", eager_mask)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.turn(8)
def test_lower_precision_is_as_far_as_the_back_ends_are(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GQA, a window, softcap and sinks; on a GPU by the kernels, in both phases."""
    own = verifying.back_ends

    def two(model: LoadedModel) -> list[str]:
        """Beside eager alone, the same in float32: what a fused back end of the model would do."""
        names = own(model)
        return names if len(names) > 1 else [*names, "eager_in_float32"]

    monkeypatch.setattr(verifying, "back_ends", two)
    monkeypatch.setattr(kernel_attention, "load_costs", lambda _: Decided(every=2))
    module = make_tiny(name).to(device, torch.bfloat16)
    for router in module.modules():
        if hasattr(router, "top_k"):  # else a rounding may choose another expert
            router.top_k = module.config.num_local_experts
    model = load_model(module)
    # Compiled layers round less often than the module that judges them.
    config = engine_config(model, blocks=600, max_sequences=24, compile=False)
    engine = Engine(model, None, config)
    assert engine.stats.slow_attention is None
    found = verified_by(engine, 10_000)
    assert found.steps > 400 and found.among_back_ends is not None
    # Two back ends are apart by what each of them rounds. The engine's attention is one more, and
    # so about as far from the first, but by roundings of its own. Both numbers are the largest of
    # some ten thousand differences, and such maxima vary by less than half.
    assert 1e-3 < found.largest < 1.5 * found.among_back_ends


def test_every_step_of_a_job_with_fewer() -> None:
    found = verified(load_model(make_tiny("llama")), 10_000, samples=1)
    assert len(forest()) <= found.steps <= len(forest()) * PARAMS.max_tokens
    assert found.largest < 1e-4


# -- what it finds ------------------------------------------------------------------------------


def test_attention_that_drops_the_shared_nodes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = reference._shared

    def without(q: torch.Tensor, *rest: object) -> reference.Partial:
        found = real(q, *rest)  # type: ignore[arg-type]
        return reference.Partial.empty(*found.out.shape, q.device)

    monkeypatch.setattr(reference, "_shared", without)
    assert verified(load_model(make_tiny("llama")), 40).largest > 0.5


def test_a_window_that_is_one_too_short_is_found() -> None:
    model = load_model(make_tiny("mistral"))
    model.layers[0] = type(model.layers[0])(**(vars(model.layers[0]) | {"window": 6}))
    assert verified(model, 40).largest > 0.01


def test_one_wrong_step_is_found_where_it_is_looked_at() -> None:
    model = load_model(make_tiny("llama"))
    verification = Verification(10_000)
    requests = requests_of([forest()[0]], verification.asking(PARAMS), 2)
    for completion in run(make_engine(model), requests).completions.values():
        said = completion.logprobs
        assert said is not None
        said[1] = TokenLogprobs(said[1].token_id, said[1].logprob - 0.25, {})
        verification.note(completion)
    model.release()
    found = verification.check(model)
    assert found is not None and found.largest == pytest.approx(0.25, abs=1e-4)


# -- what is kept -------------------------------------------------------------------------------


def completions(lengths: Iterable[int]) -> Iterable[Completion]:
    for key, length in enumerate(lengths):
        logprobs = [TokenLogprobs(index, -1.0) for index in range(length)]
        request = Request(key, [1], PARAMS, range(1))
        yield Completion(request, 0, [0] * length, None, "length", None, 0.0, logprobs)


def test_each_step_is_kept_with_the_same_probability() -> None:
    """Chi-square over 3,000 choices of 5 steps out of 40 that come in samples of 1 to 17."""
    lengths, kept = (3, 17, 1, 8, 11), Counter[tuple[int, int]]()
    for seed in range(3000):
        verification = Verification(5, seed)
        for completion in completions(lengths):
            verification.note(completion)
            assert len(verification.steps) <= 5
        places = {(step.completion.request.key, step.index) for step in verification.steps}
        assert len(places) == 5, "a step was kept twice"
        kept.update(places)
    assert len(kept) == sum(lengths) == 40
    expected = 3000 * 5 / 40
    # 39 degrees of freedom: above 76 in 4 of 10,000 cases.
    assert sum((count - expected) ** 2 / expected for count in kept.values()) < 76


def test_what_is_kept_is_bounded_and_bare() -> None:
    verification = Verification(7)
    for completion in completions([200] * 500):
        verification.note(completion)
    assert len(verification.steps) == 7
    assert all(step.completion.logprobs is None for step in verification.steps)
    assert [step.said.token_id for step in verification.steps] == [
        step.index for step in verification.steps
    ]


def test_the_same_seed_keeps_the_same_steps() -> None:
    def kept(seed: int) -> list[tuple[int, int]]:
        verification = Verification(6, seed)
        for completion in completions([30] * 20):
            verification.note(completion)
        return [(step.completion.request.key, step.index) for step in verification.steps]

    assert kept(1) == kept(1) != kept(2)


@pytest.mark.slow
def test_as_many_samples_as_steps_are_asked() -> None:
    """Known before anything is drawn; what is drawn, and of which sample, stays."""
    requests = requests_of(forest(), PARAMS, 6)
    requests[2] = replace(requests[2], samples=[])
    verification = Verification(9)
    asked = verification.choose(requests)
    telling = {(r.key, s) for r in asked if r.params.logprobs == TOP for s in r.samples}
    silent = {(r.key, s) for r in asked if r.params.logprobs is None for s in r.samples}
    assert len(telling) == 9 and not telling & silent
    assert telling | silent == {(r.key, s) for r in requests for s in r.samples}
    assert list(dict.fromkeys(r.key for r in asked)) == [r.key for r in requests]
    again = Verification(9).choose(requests[::-1])  # the order does not matter
    assert telling == {(r.key, s) for r in again if r.params.logprobs == TOP for s in r.samples}
    other = Verification(9, seed=1).choose(requests)
    assert telling != {(r.key, s) for r in other if r.params.logprobs == TOP for s in r.samples}

    model = load_model(make_tiny("llama"))
    found = run(make_engine(model), asked)
    assert found.results == run(make_engine(model), requests).results
    wanted = [c for c in found.completions.values() if verification.wants(c)]
    assert {(c.request.key, c.sample) for c in wanted} == telling
    model.release()


def test_every_sample_is_chosen_with_the_same_probability() -> None:
    requests = requests_of([[1], [2], [3]], PARAMS, 8)
    chosen = Counter[tuple[int, int]]()
    for seed in range(1500):
        asked = Verification(4, seed).choose(requests)
        chosen.update((r.key, s) for r in asked if r.params.logprobs == TOP for s in r.samples)
    expected = 1500 * 4 / 24
    assert len(chosen) == 24 and sum(chosen.values()) == 6000
    # 23 degrees of freedom: above 53 in 4 of 10,000 cases.
    assert sum((count - expected) ** 2 / expected for count in chosen.values()) < 53


def test_greedy_samples_are_still_computed_once() -> None:
    greedy = replace(PARAMS, temperature=0.0)
    verification = Verification(2)
    asked = verification.choose(requests_of([[1, 2], [3, 4]], greedy, 4))
    assert len(asked) == 2 and all(len(request.samples) == 4 for request in asked)
    model = load_model(make_tiny("llama"))
    wanted = [c for c in make_engine(model).generate(asked) if verification.wants(c)]
    assert len(wanted) == 2
    model.release()


@pytest.mark.parametrize("steps", [0, -3])
def test_less_than_a_step_is_refused(steps: int) -> None:
    with pytest.raises(UsageError, match=f"verify is {steps}: it must be at least 1 step"):
        Verification(steps)


def test_nothing_drawn_is_nothing_to_verify() -> None:
    model = load_model(make_tiny("llama"))
    model.release()
    assert Verification(5).check(model) is None


@pytest.mark.turn(4)
def test_asking_changes_no_token() -> None:
    model = load_model(make_tiny("llama"))
    verification = Verification(5)
    assert verification.asking(PARAMS).logprobs == TOP
    assert verification.asking(SamplingParams(logprobs=30)).logprobs == 30
    plain = run(make_engine(model), requests_of(forest(), PARAMS, 3)).results
    asked = run(make_engine(model), requests_of(forest(), verification.asking(PARAMS), 3)).results
    assert plain == asked
    model.release()


# -- memory -------------------------------------------------------------------------------------


def test_eager_that_would_not_fit_leaves_no_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "free_bytes", lambda device: 50_000)
    found = verified(load_model(make_tiny("llama")), 40)
    assert found.steps == 40 and found.largest < 1e-4 and found.among_back_ends is None
    assert found.no_yardstick == "eager attention needs more memory than there is"


@pytest.mark.slow
def test_steps_for_which_the_only_back_end_has_no_memory_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """4 heads, 16 bytes a score: sequences of more than 40 tokens do not fit."""
    monkeypatch.setattr(verifying, "free_bytes", lambda device: 4 * 16 * 40 * 40)
    found = verified(load_model(make_tiny("gemma2")), 40)
    assert found.steps > 0 and found.skipped > 0 and found.steps + found.skipped == 40
    assert found.largest < 1e-4
    monkeypatch.setattr(verifying, "free_bytes", lambda device: 0)
    found = verified(load_model(make_tiny("gemma2")), 40)
    assert (found.steps, found.skipped, found.largest) == (0, 40, 0.0)


@pytest.mark.turn(4)
def test_running_out_of_memory_skips_and_other_errors_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    real = verifying._logits

    def scarce(model: LoadedModel, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if len(ids) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(model, ids, rows)

    monkeypatch.setattr(verifying, "_logits", scarce)
    found = verified(load_model(make_tiny("llama")), 40)
    assert found.skipped > 0 and found.steps > 0
    assert found.no_yardstick == "eager attention needs more memory than there is"

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("a shape is wrong")

    monkeypatch.setattr(verifying, "_logits", broken)
    with pytest.raises(RuntimeError, match="a shape is wrong"):
        verified(load_model(make_tiny("llama")), 40)


# -- the module as it came ----------------------------------------------------------------------


@pytest.mark.slow
def test_fused_and_compiled_layers_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled by Dynamo for its eager back end: the graphs are whole, only slower."""
    compile = GradientCheckpointingLayer.compile
    monkeypatch.setattr(
        GradientCheckpointingLayer,
        "compile",
        lambda layer, **how: compile(layer, backend="eager", **how),
    )
    module = make_tiny("llama")
    names = {name for name, _ in module.named_modules()}
    model = load_model(module)
    with model.changing():
        optimise(model)
    layer = module.model.layers[0]
    with model.ours():
        assert layer._compiled_call_impl is not None
        assert not isinstance(layer.self_attn.q_proj, torch.nn.Linear)
    found = verified(model, 40)
    assert found.largest < 1e-4 and found.among_back_ends is not None
    assert layer._compiled_call_impl is None
    assert {name for name, _ in module.named_modules()} == names
    assert all(type(one) is torch.nn.Linear for one in (layer.self_attn.q_proj, layer.mlp.up_proj))
    ids = torch.tensor([forest()[0]])
    with torch.no_grad():
        assert torch.equal(module(ids).logits, make_tiny("llama")(ids).logits)


def test_a_closed_engine_holds_no_kv_cache() -> None:
    """What it held is free at once, for the model's own attention may need it."""
    model = load_model(make_tiny("llama"))
    engine = make_engine(model)
    run(engine, requests_of(forest(), PARAMS, 2))
    keys = weakref.ref(engine.runner.cache.keys[0])
    gc.disable()
    try:
        engine.close()
        assert keys() is None
    finally:
        gc.enable()


def test_unfused_layers_are_the_same_layers() -> None:
    module = make_tiny("qwen2")
    before = dict(module.named_modules())
    replaced = fuse_projections(module)
    assert len(replaced) == 2 * 5
    unfuse(replaced)
    after = dict(module.named_modules())
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in after)
