"""How far log-probabilities of a rollout are from the trainer's, and the trainer's from each other.

In 16 bits every operation rounds, and each order of sums rounds otherwise: one sequence alone or in
a padded batch, one attention or another, all tokens at once or one after the other. How far these
forwards of one module are from each other is the yardstick for what somebody else computes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.measurement import Difference

_DECODED = 128  # tokens of a sample that are fed one by one


@dataclass(frozen=True)
class Drawn:
    """A sample: token ids of its prompt and of itself, and the log-probabilities it came with."""

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]


def differences(trainer: Any, drawn: Sequence[Drawn], batch: int) -> Iterator[Difference]:
    """Compare log-probabilities of drawn tokens, two ways at a time.

    drawn: samples, of which the first ones are of one prompt. batch: sequences of a padded forward.
    """
    module = trainer.accelerator.unwrap_model(trainer.model)
    own = trained(trainer, drawn, batch)
    clip = trainer.args.vllm_importance_sampling_clip_max
    rollout = [torch.tensor(each.logprobs) for each in drawn]
    yield _between("rollout and trainer", rollout, own, clip)
    yield _between("trainer, one sequence alone", trained(trainer, drawn, 1), own, clip)
    attention = module.config._attn_implementation
    module.set_attn_implementation("eager")
    eager = trained(trainer, drawn, batch)
    module.set_attn_implementation(attention)
    yield _between("trainer, eager attention", eager, own, clip)
    group = [each for each in drawn if each.prompt == drawn[0].prompt]
    decoded = _decoded(module, group, trainer.temperature)
    yield _between("trainer, decoding with a KV cache", decoded, own[: len(group)], clip)
    if not trainer.args.cast_lm_head_to_fp32 and (exact := _exact(trainer, drawn, batch)):
        yield _between("trainer and float32", own, exact, clip)
        yield _between("rollout and float32", rollout, exact, clip)


def _exact(trainer: Any, drawn: Sequence[Drawn], batch: int) -> list[Tensor] | None:
    """Log-probabilities by the trainer's forward in float32; None where it is that already."""
    module = trainer.accelerator.unwrap_model(trainer.model)
    if trainer.accelerator.mixed_precision != "no":
        with _without_autocast(trainer, module):
            return trained(trainer, drawn, batch)
    if module.dtype == torch.float32:
        return None
    return trained(trainer, drawn, batch, copy.deepcopy(module).float())


@contextmanager
def _without_autocast(trainer: Any, module: Any) -> Iterator[None]:
    """Have the trainer's forward compute in the module's own float32."""
    forward, autocast = module.forward, trainer.accelerator.autocast
    module.forward, trainer.accelerator.autocast = module._original_forward, nullcontext
    try:
        yield
    finally:
        module.forward, trainer.accelerator.autocast = forward, autocast


def trained(
    trainer: Any, drawn: Sequence[Drawn], batch: int, model: Any | None = None
) -> list[Tensor]:
    """Log-probabilities of the samples' tokens by the trainer's own forward, padded as it pads.

    model: in the place of the trainer's. Returns float32 [tokens] of each sample, on the CPU.
    """
    found: list[Tensor] = []
    for start in range(0, len(drawn), batch):
        part = drawn[start : start + batch]
        ids, mask, longest = padded(part)
        with torch.no_grad():
            logprobs, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model if model is None else model,
                ids.to(trainer.model.device),
                mask.to(trainer.model.device),
                longest,
                batch_size=batch,
            )
        rows = logprobs.float().cpu()
        found += [row[: len(one.completion)] for row, one in zip(rows, part, strict=True)]
    return found


def padded(drawn: Sequence[Drawn]) -> tuple[Tensor, Tensor, int]:
    """Token ids and attention mask [samples, T], prompts to the left and completions to the right,
    and the number of columns of these.
    """
    before = max(len(each.prompt) for each in drawn)
    after = max(len(each.completion) for each in drawn)
    rows, masks = [], []
    for each in drawn:
        left, right = before - len(each.prompt), after - len(each.completion)
        rows.append([0] * left + each.prompt + each.completion + [0] * right)
        masks.append([0] * left + [1] * (len(each.prompt) + len(each.completion)) + [0] * right)
    return torch.tensor(rows), torch.tensor(masks), after


@torch.no_grad()
def _decoded(module: Any, drawn: Sequence[Drawn], temperature: float) -> list[Tensor]:
    """Log-probabilities of the first tokens of samples of one prompt, which are fed one by one."""
    lengths = [min(len(each.completion), _DECODED) for each in drawn]
    ids, _, _ = padded(drawn)
    ids = ids.to(module.device)
    fed, rows, cache = len(drawn[0].prompt), [], None
    training = module.training
    module.eval()  # a module that checkpoints its activations keeps no cache while it trains
    for step in range(max(lengths)):
        tokens = ids[:, fed + step - 1 : fed + step] if step else ids[:, :fed]
        out = module(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        every = (out.logits[:, -1].float() / temperature).log_softmax(-1)
        rows.append(every.gather(1, ids[:, fed + step, None])[:, 0].cpu())
    module.train(training)
    found = torch.stack(rows, 1)
    return [row[:length] for row, length in zip(found, lengths, strict=True)]


def _between(what: str, one: Sequence[Tensor], other: Sequence[Tensor], clip: float) -> Difference:
    """Compare as many tokens of each sample as both have. masked: of the samples, those that TRL
    would leave out if the one had drawn them and the other trained on them.
    """
    apart = [b[: len(a)] - a[: len(b)] for a, b in zip(one, other, strict=True)]
    every = torch.cat(apart).abs()
    return Difference(
        what=what, mean=every.mean().item(), largest=every.max().item(), sequences=len(apart),
        masked=_above(apart, clip),
    )  # fmt: skip


def masked(drawn: Sequence[Drawn], own: Sequence[Tensor], clip: float) -> int:
    """How many samples TRL would leave out by its default beside another engine: those whose
    probability the trainer finds more than `clip` times as large."""
    both = zip(drawn, own, strict=True)
    return _above([found - torch.tensor(each.logprobs) for each, found in both], clip)


def _above(apart: Sequence[Tensor], clip: float) -> int:
    """Count the samples whose probability is more than `clip` times as large."""
    return sum(bool(each.sum().exp() > clip) for each in apart)
