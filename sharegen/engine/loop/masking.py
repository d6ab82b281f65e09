"""What the rows of a step may draw, where grammars bound it: the masks that go into its batch.

The host has seen every token that a mask depends on: a row whose last one is still on the device
sits the step out (`schedule/batch_rows.py`). So a mask is data like the rest of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np

from sharegen.engine.core.batch import TokenMasks
from sharegen.engine.grammar.grammars import Grammars, Matcher
from sharegen.engine.schedule.step import DecodeStep, PrefillStep, Step


def masked(step: Step, grammars: Grammars) -> Step:
    """The step with the masks of what it draws for structured outputs."""
    if isinstance(step, PrefillStep):
        masks = _of_groups(step, grammars)
        return step if masks is None else replace(step, batch=replace(step.batch, masks=masks))
    if not step.bounded:
        return step
    masks = _of_rows(step, grammars)
    return replace(step, batch=replace(step.batch, masks=masks))


def _of_groups(step: PrefillStep, grammars: Grammars) -> TokenMasks | None:
    """The first tokens of a group are drawn with one mask."""
    matchers: list[Matcher] = []
    counts: list[int] = []
    places: list[int] = []
    first = 0
    for group in step.groups:
        if group.request.params.structured_outputs is not None:
            matchers.append(grammars.begin(group.request))
            counts.append(len(group.drawn))
            places += range(first, first + len(group.drawn))
        first += len(group.drawn)
    if not matchers:
        return None
    return _masks(places, np.repeat(np.arange(len(matchers)), counts), matchers, grammars)


def _of_rows(step: DecodeStep, grammars: Grammars) -> TokenMasks:
    """Matchers take what was drawn since they were asked last."""
    matchers: list[Matcher] = []
    for sequence in step.bounded.values():
        if sequence.matcher is None:
            sequence.matcher = grammars.begin(sequence.group.request)
        sequence.matcher.take(sequence.tokens[sequence.matcher.drawn :])
        matchers.append(sequence.matcher)
    return _masks(list(step.bounded), np.arange(len(matchers)), matchers, grammars)


def _masks(
    places: Seq[int], which: np.ndarray, matchers: list[Matcher], grammars: Grammars
) -> TokenMasks:
    return TokenMasks(np.array(places, dtype=np.int64), which, grammars.masks(matchers))
