"""Which of many requests are refused if any is: a worker is asked about these alone.

To ask about all of a large job sends all its prompts once more than the job does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharegen.engine.core.request import Request


def hardest(requests: Sequence[Request]) -> list[Request]:
    """Return the shortest and the longest of requests that are sampled alike, and those with the
    least and the greatest token.

    What an engine refuses a request for is its sampling, or that its prompt is empty, too long, or
    has tokens that the vocabulary has not (`Checks`).
    """
    extremes: dict[tuple[int, int, bool], list[tuple[int, Request]]] = {}
    for request in requests:
        kind = id(request.params), id(request.beam), request.fills_context
        ids = np.asarray(request.prompt_token_ids)
        least, greatest = (ids.min(), ids.max()) if len(ids) else (0, 0)
        each = [(rank, request) for rank in (-len(ids), len(ids), -least, greatest)]
        known = extremes.setdefault(kind, each)
        known[:] = [max(pair, key=_rank) for pair in zip(known, each, strict=True)]
    found = {id(request): request for known in extremes.values() for _, request in known}
    return list(found.values())


def _rank(pair: tuple[int, Request]) -> int:
    return pair[0]
