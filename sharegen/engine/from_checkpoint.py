"""How far a job with quantised weights is from the weights as the checkpoint has them.

The steps that `verifying` kept are computed again by the model as it is without quantisation, with
its own attention, layer by layer. Many sequences share a forward, for each forward takes all the
weights to the device once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from sharegen.engine.execute.memory import is_out_of_memory
from sharegen.engine.model.checkpoint.source import quiet
from sharegen.engine.model.layerwise import layer_by_layer
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.verifying import (
    Distance,
    Found,
    Step,
    back_ends,
    by_sample,
    eager_bytes,
    found_in,
    free_bytes,
    row_of,
    tokens_up_to,
)

_TOKENS = 2**16  # of one forward, padding included


def distance_from_checkpoint(
    stored: PreTrainedModel, model: LoadedModel, steps: Sequence[Step]
) -> Distance:
    """Compare a job's numbers with those of its checkpoint.

    Args:
        stored: the model with the checkpoint's own weights, on the CPU.
        model: the job's model, which is released.

    Steps for which there is no memory are left out.
    """
    found: list[Found | None] = [None] * len(steps)
    samples = [[steps[i] for i in places] for places in by_sample(steps)]
    places = {id(step): i for i, step in enumerate(steps)}
    samples.sort(key=_length)
    back_end = back_ends(model)[0]
    most = _TOKENS
    with quiet(), layer_by_layer(stored, model.device):
        stored.set_attn_implementation(back_end)
        while samples and most:
            count = _count(samples, most, model, back_end)
            try:
                said = _compute(stored, model, samples[:count])
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                most = most // 2 if count > 1 else 0  # what is left is longer still
            else:
                together = [step for sample in samples[:count] for step in sample]
                for step, own in zip(together, said, strict=True):
                    found[places[id(step)]] = own
                samples = samples[count:]
    return Distance.of(steps, found)


def _length(steps: Sequence[Step]) -> int:
    return max(map(row_of, steps)) + 1


def _count(samples: Sequence[Sequence[Step]], most: int, model: LoadedModel, back_end: str) -> int:
    """How many of the samples, shortest first, go into one forward: at least one."""
    free = free_bytes(model.device) // 2
    count = 1
    for sample in samples[1:]:
        length = _length(sample)
        scores = eager_bytes(model, length) if back_end == "eager" else 0
        if (count + 1) * length > most or (count + 1) * scores > free:
            break
        count += 1
    return count


@torch.no_grad()
def _compute(
    stored: PreTrainedModel, model: LoadedModel, batch: Sequence[Sequence[Step]]
) -> list[Found]:
    """What the model says at the steps, in their order."""
    sequences = [tokens_up_to(sample) for sample in batch]
    ids = torch.zeros((len(batch), max(map(len, sequences))), dtype=torch.long)
    for row, tokens in zip(ids, sequences, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)  # no token sees the padding behind it
    rows = [(i, row_of(step)) for i, sample in enumerate(batch) for step in sample]
    with _only(stored, rows):
        logits = stored(input_ids=ids.to(model.device), use_cache=False).logits[0]
    return list(found_in(logits, [step for sample in batch for step in sample]))


@contextmanager
def _only(stored: PreTrainedModel, rows: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Let the output head see these rows (sequence, position) alone, as one sequence."""
    sequence, position = torch.tensor(rows).t()

    def keep(head: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, *others = arguments
        here = hidden.device
        return (hidden[sequence.to(here), position.to(here)][None], *others)

    head: Any = stored.get_output_embeddings()
    handle = head.register_forward_pre_hook(keep)
    try:
        yield
    finally:
        handle.remove()
