"""Whole jobs for the tests of the engine: prompts that share, an engine that is checked after
every step, and the model's own eager attention as the judge of every token."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from sharegen.engine.config import EngineConfig, EngineStats
from sharegen.engine.core.batch import Int64
from sharegen.engine.core.random_key import row_key
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.execute.kv_cache import block_format
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.sample.draws import uniform
from sharegen.engine.schedule.survival import Survival
from sharegen.engine.schedule.swapping import SwapCost
from tests.engine.tiny_models import make_tiny

TIE = 1e-4  # a greedy token counts as wrong only where the best two logits differ by more
VOCAB_SIZE = 128
FIRST_TOKEN = 3  # pad, BOS and EOS come before
CONTEXT = 256

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

Result = tuple[list[int], float, str]
"""What must not depend on how a sample was computed: tokens, log-probability, finish reason."""


@cache
def loaded(name: str) -> LoadedModel:
    """A tiny model of the table, ready for the engine; one for all tests."""
    return load_model(make_tiny(name))


@cache
def original(name: str) -> PreTrainedModel:
    """The same model with its own eager attention."""
    return make_tiny(name)


def random_tokens(count: int, rng: random.Random) -> list[int]:
    return [rng.randrange(FIRST_TOKEN, VOCAB_SIZE) for _ in range(count)]


def forest(seed: int = 0) -> list[list[int]]:
    """Prompts that branch at four levels, ragged; two equal ones, prefixes, and strangers."""
    rng = random.Random(seed)
    root = random_tokens(21, rng)
    prompts = []
    for branches in (3, 1, 2):
        middle = root + random_tokens(rng.randint(3, 19), rng)
        for _ in range(branches):
            inner = middle + random_tokens(rng.randint(1, 17), rng)
            prompts += [inner + random_tokens(rng.randint(1, 9), rng) for _ in range(2)]
        prompts.append(middle)
    return [*prompts, root, prompts[0], random_tokens(1, rng), random_tokens(30, rng)]


def requests_of(
    prompts: Sequence[Sequence[int]], params: SamplingParams, samples: int = 1
) -> list[Request]:
    return [Request(i, prompt, params, range(samples)) for i, prompt in enumerate(prompts)]


def poison(model: LoadedModel, token: int, value: float = torch.nan) -> None:
    """Hidden states of the token become `value`, and with them its keys, values and logits."""

    def hook(_: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output.masked_fill((inputs[0] == token)[..., None], value)

    model.on_release(model.model.get_input_embeddings().register_forward_hook(hook).remove)


class CheckedEngine(Engine):
    """Asserts after every step that all books agree, and at the end that nothing is left."""

    def step(self) -> list[Completion]:
        finished = super().step()
        self.scheduler.check_integrity()
        return finished

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        yield from super().generate(requests)
        assert_empty(self)


class _EndsNow(Survival):
    """No sample goes on beyond the block where it is."""

    def __init__(self) -> None:
        pass

    def beyond(self, known: Int64, blocks: Int64) -> np.ndarray:
        return (blocks <= known).astype(np.float64)


def ends_now(_: object = None) -> Survival:
    """What a job has learnt where admission is to leave no room for growth."""
    return _EndsNow()


def hope_for_the_best(engine: Engine) -> None:
    """Admission leaves no room for growth."""
    engine.scheduler.admission.survival = ends_now  # type: ignore[method-assign]


def swap_always(engine: Engine) -> None:
    """Whoever is preempted goes to host memory, as long as that has room."""
    engine.scheduler.swapping.cost = SwapCost(fixed=-1.0)  # also while no step has been timed


def assert_empty(engine: Engine) -> None:
    """Nothing runs or waits; all that stands in the tree, and in blocks, is there for others."""
    engine.scheduler.check_integrity()
    cache = engine.scheduler.cache
    assert engine.pool.num_used == cache.idle_blocks
    assert set(cache.tree.nodes()) == set(cache.idle)
    assert not engine.scheduler.has_work
    assert engine.scheduler.num_running == 0
    assert (engine.stats.running, engine.stats.waiting, engine.stats.blocks_used) == (0, 0, 0)


def engine_config(
    model: LoadedModel,
    *,
    blocks: int = 400,
    block_size: int = 4,
    max_sequences: int = 64,
    prefill_tokens: int = 24,
    seed: int = 0,
    lookahead: int = 16_384,
    compile: bool = True,
    kv_cache_dtype: str = "auto",
    state_slots: int = 40,
    first_rows: int | None = None,
    host_blocks: int = 0,
    deterministic: bool = False,
    any_tree: bool = False,
) -> EngineConfig:
    """Everything small, so that few tokens go through many blocks and batches.

    blocks: of full width. state_slots: where the model keeps states. host_blocks: of samples' own
    tokens, that host memory takes.
    """
    kind = block_format(model.layers, model.dtype, kv_cache_dtype)
    token_bytes = kind.shared_token_bytes
    swapped_bytes = host_blocks * block_size * (kind.token_bytes + torch.int32.itemsize)
    return EngineConfig(
        max_sequences=max_sequences,
        kv_cache_memory=blocks * block_size * token_bytes + state_slots * model.state_bytes,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        seed=seed,
        prefill_tokens=prefill_tokens,
        lookahead=lookahead,
        compile=compile,
        state_slots=state_slots,
        first_rows=first_rows,
        swap_space=swapped_bytes / 2**30,
        deterministic=deterministic,
        any_tree=any_tree,
    )


def make_engine(model: LoadedModel, *, tokenizer: object = None, **config: Any) -> CheckedEngine:
    """config: as `engine_config` takes it."""
    return CheckedEngine(model, tokenizer, engine_config(model, **config))


@dataclass(frozen=True)
class Ran:
    """A finished job: what came out, by (request key, sample), and the engine's counts."""

    completions: dict[tuple[int, int], Completion]
    stats: EngineStats

    @property
    def results(self) -> dict[tuple[int, int], Result]:
        return {
            key: (c.token_ids, c.cumulative_logprob, c.finish_reason)
            for key, c in self.completions.items()
        }

    @property
    def tokens(self) -> dict[tuple[int, int], list[int]]:
        return {key: c.token_ids for key, c in self.completions.items()}


def run(engine: Engine, requests: Sequence[Request]) -> Ran:
    """Every sample exactly once, or an AssertionError."""
    completions: dict[tuple[int, int], Completion] = {}
    for completion in engine.generate(requests):
        key = (completion.request.key, completion.sample)
        assert key not in completions, f"{key} came twice"
        completions[key] = completion
    wanted = {(request.key, sample) for request in requests for sample in request.samples}
    assert set(completions) == wanted
    return Ran(completions, engine.stats)


@torch.no_grad()
def judge(completion: Completion, name: str) -> int:
    """Assert that a completion is what the model's eager attention makes of its prompt.

    Every token is the greedy choice, or the inverse CDF at the sample's own random number; the
    log-probability is that of the raw distribution; the end is the first that is allowed.
    For plain requests: temperature, stop token ids and limits, seed 0. Returns how many tokens
    rest on a tie (two logits, or a number and a step of the CDF, nearer than TIE).
    """
    model, params = original(name), completion.request.params
    prompt, output = list(completion.request.prompt_token_ids), completion.token_ids
    ids = torch.tensor([prompt + output[:-1]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :].double()
    drawn = torch.tensor(output)
    assert len(logits) == len(output) > 0
    if params.temperature == 0:
        exact = logits.argmax(-1) == drawn
        near = logits.amax(-1) - logits.gather(-1, drawn[:, None])[:, 0] <= TIE
    else:
        cdf = (logits / params.temperature).softmax(-1).cumsum(-1)
        upper = cdf.gather(-1, drawn[:, None])[:, 0]
        below = cdf.gather(-1, (drawn - 1).clamp(min=0)[:, None])[:, 0]
        lower = torch.where(drawn > 0, below, 0.0)
        key = row_key(0, completion.request.key, completion.sample)
        number = uniform(torch.full((len(output),), key), torch.arange(len(output))).double()
        exact = (lower <= number) & (number < upper)
        near = (lower - TIE <= number) & (number < upper + TIE)
    assert near.all(), f"wrong token at {int((~near).nonzero()[0, 0])} of {output}"
    logprob = logits.log_softmax(-1).gather(-1, drawn[:, None]).sum().item()
    assert abs(completion.cumulative_logprob - logprob) <= 1e-4 * len(output)
    assert_end(completion, loaded(name).eos_token_ids)
    return int((~exact).sum())


@torch.no_grad()
def first_difference_is_a_tie(
    model: PreTrainedModel, prompt: list[int], tokens: list[int], expected: list[int]
) -> bool:
    """Whether two greedy outputs part where the model's best two logits are nearer than TIE."""
    pairs = enumerate(zip(tokens, expected, strict=False))
    same = next(i for i, pair in pairs if len(set(pair)) > 1)
    text = torch.tensor([prompt + expected[:same]], device=model.device)
    best, second = model(input_ids=text, use_cache=False).logits[0, -1].topk(2).values.tolist()
    return best - second <= TIE


def assert_end(completion: Completion, eos_token_ids: Sequence[int]) -> None:
    """The sample ended where it had to, for the reason that it gives."""
    params, output = completion.request.params, completion.token_ids
    eos = () if params.ignore_eos else eos_token_ids
    ends = {*eos, *params.stop_token_ids}
    assert not ends & set(output[:-1])
    room = CONTEXT - len(completion.request.prompt_token_ids)
    assert len(output) <= min(params.max_tokens, room)
    if output[-1] in eos:
        reason = "eos"
    elif output[-1] in params.stop_token_ids:
        reason = "stop"
        assert completion.stop_reason == output[-1]
    else:
        reason = "length" if len(output) == params.max_tokens else "context"
        assert len(output) == min(params.max_tokens, room)
    assert completion.finish_reason == reason
