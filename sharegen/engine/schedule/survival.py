"""How likely a sample is to reach a length, from those that ended and those that still run.

The first samples to end are the short ones: an average over what has finished takes all for short.
So every sample counts among those at risk up to the length that it has reached, as in the
Kaplan-Meier estimator, here in its actuarial form: a life table with an age class a KV block.

A prior says what is thought where none has come so far: that one sample goes on, on average, for
half as long again as it has, and half of `_SCALE` tokens (a Lomax distribution of shape 3). It
counts as one sample at risk in every age class, which is Hjort's posterior mean under a beta
process ("Nonparametric Bayes estimators based on beta processes in models for life history data",
1990). So nothing depends on the limit as long as samples end before it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sharegen.engine.core.batch import Int64
from sharegen.engine.core.lengths import Lengths

_SCALE = 192.0
_SHAPE = 3


class Survival:
    """How long samples live. reached: [classes + 1] the share of samples with more than so many
    blocks of tokens.

    running: [n] output tokens of the samples that have not ended.
    """

    def __init__(self, lengths: Lengths, running: Int64, size: int, classes: int) -> None:
        # One that ended with 16 tokens never had a second block; one that has 16 may.
        ended = _by_class(lengths.ended, size, classes, offset=-1)
        alive = _by_class(lengths.cut, size, classes, offset=0)
        alive += np.bincount(np.minimum(running // size, classes), minlength=classes + 1)
        at_risk = (ended + alive)[::-1].cumsum()[::-1] - alive / 2
        edges = np.arange(classes + 2) * size
        prior = 1 - ((_SCALE + edges[:-1]) / (_SCALE + edges[1:])) ** _SHAPE
        hazard = (ended + prior) / (at_risk + 1)
        self.reached = np.concatenate([[1.0], (1 - hazard[:classes]).cumprod()])

    def beyond(self, known: Int64, blocks: Int64) -> npt.NDArray[np.float64]:
        """How likely samples of `known` full blocks are to have tokens for more than `blocks`."""
        return self.reached[np.maximum(blocks, known)] / self.reached[known]


def _by_class(
    counts: Mapping[int, int], size: int, classes: int, offset: int
) -> npt.NDArray[np.float64]:
    """Samples by the age class in which their last token falls; all beyond are in the last."""
    tokens = np.fromiter(counts.keys(), np.int64, len(counts))
    numbers = np.fromiter(counts.values(), np.float64, len(counts))
    places = np.clip((tokens + offset) // size, 0, classes)
    return np.bincount(places, numbers, minlength=classes + 1).astype(np.float64)
