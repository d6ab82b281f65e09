"""All pictures of a report, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Sequence

from sharegen.results.report import costs, verdicts
from sharegen.results.report.measure import Measured
from sharegen.results.report.picture import Picture

_MAKERS = (
    verdicts.curves,
    verdicts.difficulties,
    verdicts.solved,
    verdicts.margins,
    costs.lengths,
    costs.rates,
    costs.sharing,
)


def pictures(runs: Sequence[Measured]) -> list[Picture]:
    """Every picture that these runs have the numbers for."""
    return [picture for maker in _MAKERS for picture in maker(runs)]
