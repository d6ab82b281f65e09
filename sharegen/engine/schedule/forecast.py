"""How many blocks running samples are going to hold.

A sample that starts holds one block and at its end many, but not all samples are at their end at
once: what counts is the most that all of them hold at any moment to come, as in the Past-Future
scheduler (Gong et al., ASPLOS 2025). There lengths are drawn at random from those of the past;
here mean and variance are computed.
"""

from __future__ import annotations

import math

import numpy as np

from sharegen.engine.core.batch import Int64
from sharegen.engine.schedule.survival import Survival

_DEVIATIONS = 2.5
"""Standard deviations above the mean for which blocks are kept free: beyond that, preemption."""


class Forecast:
    """The blocks of some samples at moments to come, each as many block lengths from now.

    longest: blocks of any of them at most.
    """

    def __init__(self, survival: Survival, longest: int) -> None:
        self._survival = survival
        self._moments = _moments(longest)
        self._mean = np.zeros(len(self._moments))
        self._variance = np.zeros(len(self._moments))
        self._largest = np.zeros(len(self._moments))

    def add_sequences(self, fed: Int64, known: Int64, last: Int64, count: Int64) -> None:
        """Samples, `count` of each kind, that go on from now.

        fed, known: [n] whole blocks of outputs that were given to the model, and that are drawn:
        more than fed where it replays them. last: [n] the number of its last block at the limit.
        """
        block = fed[:, None] + self._moments
        alive = self._survival.beyond(known[:, None], np.minimum(block, last[:, None]))
        held = (block + 1) * (block <= last[:, None]) * count[:, None]
        self._mean += (held * alive).sum(0)
        self._variance += (held * (block + 1) * alive * (1 - alive)).sum(0)
        self._largest += held.sum(0)

    @property
    def most(self) -> int:
        """Blocks that they hold at the worst moment, with room for chance."""
        probable = self._mean + _DEVIATIONS * self._variance**0.5
        return math.ceil(np.minimum(probable, self._largest).max())


def most_growth(blocks: int) -> int:
    """By how much `most` grows at most for a sample that may come to hold so many blocks.

    Its mean is at most that, its deviation half of it, and deviations of several add up to less.
    """
    return math.ceil((1 + _DEVIATIONS / 2) * blocks) + 1  # as `most` is rounded up


def _moments(longest: int) -> Int64:
    """List numbers from 0 to `longest`, every one at first and then four an octave."""
    steps = [0]
    while steps[-1] < longest:
        steps.append(steps[-1] + max(1, steps[-1] // 5))
    return np.array(steps, dtype=np.int64)
