"""How the compiler goes over the rows of a norm: once, where it would three times.

It holds a row of up to 1,024 numbers in a program's registers. A longer one it reads again for
each number that depends on all of it: for a norm's mean, for the largest number of what is then
quantised, and at last for the result. That is meant for reductions of any length; the hidden states
of a token are no more than a program can hold.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.virtualized import V

_LONGEST = 16_384  # numbers


class WholeRows(InductorChoices):
    """Holds rows that lie together, up to `_LONGEST` numbers, and chooses as ever for the rest."""

    @staticmethod
    def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
        chosen: bool = InductorChoices.should_use_persistent_reduction(
            features, cooperative_reduction
        )
        return chosen or (
            config.triton.persistent_reductions
            and not cooperative_reduction
            and features.get_reduction_hint() == ReductionHint.INNER
            and V.graph.sizevars.statically_known_leq(features.reduction_numel, _LONGEST)
        )


def whole_rows() -> AbstractContextManager[None]:
    """What is compiled inside goes over such rows once."""
    handled: AbstractContextManager[None] = V.set_choices_handler(WholeRows())
    return handled
