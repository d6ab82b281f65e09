"""A job's own numbers against the model's own attention.

Some steps of the job are kept: where they stood, and the log-probabilities that the engine gave
there. When the job is done, the Hugging Face module computes them again, teacher-forced along the
same tokens with its own attention, one sequence at a time. How far its own attention back ends are
from each other is the yardstick: no engine can be nearer to all of them.
"""

from __future__ import annotations

import inspect
import math
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from heapq import nsmallest

import torch

from sharegen.engine.core.random_key import row_key
from sharegen.engine.core.request import Completion, Request, SamplingParams, TokenLogprobs
from sharegen.engine.execute.memory import is_out_of_memory
from sharegen.engine.model.checkpoint.source import quiet
from sharegen.engine.model.loaded import LoadedModel
from sharegen.errors import UsageError

TOP = 20
"""How many of a step's likeliest tokens have their log-probabilities compared."""


@dataclass(frozen=True)
class Step:
    """A token that was drawn: which one of a completion, and what the engine said there."""

    completion: Completion
    index: int
    said: TokenLogprobs

    @property
    def numbers(self) -> dict[int, float]:
        """Log-probabilities by token id: of the likeliest tokens and the one that was drawn."""
        return self.said.top | {self.said.token_id: self.said.logprob}


@dataclass(frozen=True)
class Found:
    """What a model says at a step: log-probabilities by token id, and its likeliest token."""

    logprobs: dict[int, float]
    likeliest: int


@dataclass(frozen=True)
class Distance:
    """How far the engine's log-probabilities are from a model's.

    steps: compared. largest, mean, p99: of the absolute differences, in nats, p99 their 99th
    percentile. changed: the share of the steps whose likeliest token is another one.
    """

    steps: int
    largest: float
    mean: float
    p99: float
    changed: float

    @classmethod
    def of(cls, steps: Sequence[Step], found: Sequence[Found | None]) -> Distance:
        """Summarise what was found at each step, None where nothing was."""
        pairs = [(step, own) for step, own in zip(steps, found, strict=True) if own is not None]
        differences = sorted(
            _difference(step.numbers[token], logprob)
            for step, own in pairs
            for token, logprob in own.logprobs.items()
        )
        changed = sum(_is_another(step, own) for step, own in pairs)
        if not differences:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        return cls(
            steps=len(pairs),
            largest=differences[-1],
            mean=sum(differences) / len(differences),
            p99=differences[math.ceil(0.99 * len(differences)) - 1],
            changed=changed / len(pairs),
        )


@dataclass(frozen=True)
class Verified(Distance):
    """How far the engine's log-probabilities are from those of the model's own attention.

    skipped: steps for which the model's own attention found no memory. reference: the back end
    compared with. among_back_ends: the largest difference of the model's back ends from each other
    at the same steps, the yardstick; no_yardstick: why there is none. from_checkpoint: of a job
    with quantised weights, how far it is from the weights as the checkpoint has them.
    """

    skipped: int
    reference: str
    among_back_ends: float | None
    no_yardstick: str | None
    from_checkpoint: Distance | None = None


class Verification:
    """Steps of a job, chosen at random, and what the model itself makes of them.

    steps: how many to keep, of as many samples: these are chosen before anything is drawn, for the
    others need not tell what is compared. Each step of theirs is kept with the same probability,
    and no more are held at any time. seed: of the choice. Raises UsageError for less than one step.
    """

    def __init__(self, steps: int, seed: int = 0) -> None:
        if steps < 1:
            raise UsageError(f"verify is {steps}: it must be at least 1 step")
        self.size = steps
        self.steps: list[Step] = []
        self._seed = seed
        self._chosen: set[tuple[int, int]] = set()
        self._rng = random.Random(seed)
        self._seen = 0  # steps of the job so far
        self._next = 0  # which of them is the next to be kept
        self._weight = 1.0

    def choose(self, requests: Sequence[Request]) -> list[Request]:
        """The requests of a job, of which the chosen samples ask for what is compared.

        The choice depends on (seed, request key, sample) alone. A request may come as two of the
        same key. Greedy samples are computed once and so ask together.
        """
        places = ((request.key, sample) for request in requests for sample in request.samples)
        self._chosen.update(nsmallest(self.size, places, lambda place: row_key(self._seed, *place)))
        asked: list[Request] = []
        for request in requests:
            chosen = {s for s in request.samples if (request.key, s) in self._chosen}
            if not chosen:
                asked.append(request)
                continue
            if request.params.is_greedy:
                chosen = set(request.samples)
            mine = [sample for sample in request.samples if sample in chosen]
            others = [sample for sample in request.samples if sample not in chosen]
            asked.append(replace(request, params=self.asking(request.params), samples=mine))
            if others:
                asked.append(replace(request, samples=others))
        return asked

    def wants(self, completion: Completion) -> bool:
        """Whether it is one of the chosen, and has what is compared."""
        place = (completion.request.key, completion.sample)
        return place in self._chosen and completion.error is None

    def asking(self, params: SamplingParams) -> SamplingParams:
        """Ask for the same draws, with the log-probabilities that are compared."""
        return replace(params, logprobs=max(TOP, params.logprobs or 0))

    def note(self, completion: Completion) -> None:
        """Take from a finished sample of such params what the choice falls upon.

        Li, "Reservoir-sampling algorithms of time complexity O(n(1 + log(N/n)))" (TOMS 1994),
        algorithm L: it says how many steps to pass over, rather than asking each one.
        """
        assert completion.logprobs is not None, "the params were not those of `asking`"
        bare = replace(completion, logprobs=None, prompt_logprobs=None)
        while self._next < self._seen + len(completion.logprobs):
            index = self._next - self._seen
            step = Step(bare, index, completion.logprobs[index])
            if len(self.steps) < self.size:
                self.steps.append(step)
            else:
                self.steps[self._rng.randrange(self.size)] = step
            self._next += 1
            if len(self.steps) == self.size:
                self._next += self._pass_over()
        self._seen += len(completion.logprobs)

    def _pass_over(self) -> int:
        self._weight *= math.exp(math.log(1.0 - self._rng.random()) / self.size)
        return math.floor(math.log(1.0 - self._rng.random()) / math.log1p(-self._weight))

    def check(self, model: LoadedModel) -> Verified | None:
        """Let the model's module compute the steps with its own attention; None without steps.

        The model must be released, and memory should be free of the KV cache.
        """
        if not self.steps:
            return None
        if model.device.type == "cuda":
            torch.cuda.empty_cache()
        by_back_end = {
            name: found
            for name in back_ends(model)
            if (found := _numbers(model, name, self.steps)) is not None
        }
        reference, found = next(iter(by_back_end.items()))
        among: float | None = None
        why: str | None = f"only {reference} computes this model's attention"
        if len(by_back_end) > 1:
            name, other = list(by_back_end.items())[1]
            why = f"{name} attention needs more memory than there is"
            if None not in other:
                among, why = max(_differences(other, found)), None
        distance = Distance.of(self.steps, found)
        return Verified(
            **asdict(distance),
            skipped=len(found) - distance.steps,
            reference=reference,
            among_back_ends=among,
            no_yardstick=why,
        )


_Numbers = list[Found | None]
"""What the module says of each step; None where memory did not suffice."""


def back_ends(model: LoadedModel) -> list[str]:
    """The reference, then the yardstick. SDPA has no softcap and no sinks.

    Without attention there is nothing to choose.
    """
    special = any(layer.softcap is not None or layer.has_sinks for layer in model.layers)
    return ["eager"] if special or not model.layers else ["sdpa", "eager"]


def _numbers(model: LoadedModel, back_end: str, steps: list[Step]) -> _Numbers | None:
    """What the module says at the steps; None where it does not have the back end."""
    module = model.model
    before = module.config._attn_implementation
    with quiet():
        try:
            module.set_attn_implementation(back_end)
        except ValueError:
            return None
        try:
            numbers: _Numbers = [None] * len(steps)
            for places in by_sample(steps):
                own = _of_sample(model, back_end, [steps[i] for i in places])
                for i, found in zip(places, own, strict=True):
                    numbers[i] = found
            return numbers
        finally:
            module.set_attn_implementation(before)


def by_sample(steps: Sequence[Step]) -> list[list[int]]:
    """Which of the steps are of one sample, for each sample that has any."""
    found: dict[tuple[int, int], list[int]] = {}
    for i, step in enumerate(steps):
        found.setdefault((step.completion.request.key, step.completion.sample), []).append(i)
    return list(found.values())


def tokens_up_to(steps: Sequence[Step]) -> list[int]:
    """The prompt of the sample that the steps are of, and its tokens before the last of these."""
    completion = steps[0].completion
    prompt = list(completion.request.prompt_token_ids)
    return prompt + completion.token_ids[: max(step.index for step in steps)]


def row_of(step: Step) -> int:
    """Where in the sequence the token stands after which the step drew."""
    return len(step.completion.request.prompt_token_ids) - 1 + step.index


def _of_sample(model: LoadedModel, back_end: str, steps: list[Step]) -> _Numbers:
    """The steps of one sample: one forward over its prompt and its tokens up to the last step."""
    tokens = tokens_up_to(steps)
    if back_end == "eager" and eager_bytes(model, len(tokens)) > free_bytes(model.device):
        return [None] * len(steps)
    rows = torch.tensor([row_of(step) for step in steps], device=model.device)
    try:
        logits = _logits(model, torch.tensor(tokens, device=model.device), rows)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return [None] * len(steps)
    return list(found_in(logits, steps))


def found_in(logits: torch.Tensor, steps: Sequence[Step]) -> Iterator[Found]:
    """Look the tokens up in logits [steps, vocabulary]."""
    for step, row in zip(steps, logits.float().log_softmax(-1), strict=True):
        numbers = row[list(step.numbers)].tolist()
        yield Found(dict(zip(step.numbers, numbers, strict=True)), int(row.argmax()))


@torch.inference_mode()
def _logits(model: LoadedModel, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Run the model on a whole sequence.

    Args:
        ids: [T].

    Returns:
        The logits [rows, vocab_size] of some of its rows.
    """
    module = model.model
    if "logits_to_keep" in inspect.signature(module.forward).parameters:
        return module(input_ids=ids[None], use_cache=False, logits_to_keep=rows).logits[0]
    return module(input_ids=ids[None], use_cache=False).logits[0, rows]


def eager_bytes(model: LoadedModel, length: int) -> int:
    """What a layer of eager attention takes: scores, masked ones, and their softmax in float32."""
    heads = max((layer.num_heads for layer in model.layers), default=0)
    return heads * length * length * (2 * model.dtype.itemsize + 8)


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    # Linux gives more than it has and ends the process later: stay well below all of it.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _differences(given: _Numbers, found: _Numbers) -> list[float]:
    """Absolute differences of all numbers of all steps that both sides have."""
    return [
        _difference(other.logprobs[token], logprob)
        for other, own in zip(given, found, strict=True)
        if other is not None and own is not None
        for token, logprob in own.logprobs.items()
    ]


def _difference(one: float, other: float) -> float:
    return 0.0 if one == other else abs(one - other)  # infinite ones may be equal


def _is_another(step: Step, found: Found) -> bool:
    """Whether the engine has another likeliest token; of equals it may be either."""
    numbers = step.numbers
    return numbers.get(found.likeliest, -math.inf) < max(numbers.values())
