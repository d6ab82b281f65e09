"""Finished samples, drawn again in another batch: do they come out byte for byte as they did?"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sharegen.errors import ModelError
from sharegen.results.journal.record import Record

if TYPE_CHECKING:
    from sharegen.engine.core.request import Completion, Request

_DRAWN = ("completion", "num_tokens", "finish_reason", "cumulative_logprob", "token_ids")
"""What of a line is drawn; how its answer is read may have changed since."""


@dataclass(frozen=True)
class DrawnAgain:
    """What became of samples that were drawn again.

    samples: how many were; same: those that came out as they are on record; first: which one did
        not, as its problem and sample, None where all did.
    """

    samples: int
    same: int
    first: str | None = None

    @property
    def error(self) -> ModelError:
        """What is wrong where not all are the same in the deterministic mode."""
        return ModelError(
            f"--check-determinism: {self.samples - self.same:,} of {self.samples:,} samples came "
            f"out otherwise in another batch (the first: {self.first}): were they drawn on another "
            "card or with other versions? Please report it if not"
        )


def draw_again(
    records: Iterable[Record],
    requests: Mapping[str, Request],
    beside: Sequence[Request],
    count: int,
    generate: Callable[[list[Request]], Iterable[Completion]],
    record_of: Callable[[str, Completion], Record],
) -> DrawnAgain:
    """Draw some of the samples on record again, in another order and with none beside them.

    Args:
        records: the journal's lines.
        requests: by the ids of the problems that may be asked.
        beside: all requests of the job, which say where its tree splits.
        count: samples to draw, chosen at random; all where there are fewer. Texts of a beam search
            come together, and are not drawn again.
        generate: draws them.
        record_of: makes the line of a problem's completion.
    """
    chosen = _chosen(records, requests, count)
    samples: dict[int, list[int]] = defaultdict(list)
    for problem, sample in chosen:
        samples[requests[problem].key].append(sample)
    ids = {request.key: problem for problem, request in requests.items()}
    asked = [
        replace(request, samples=samples.get(request.key, ()), required=None) for request in beside
    ]
    random.shuffle(asked)
    same, differing = 0, []
    for completion in generate(asked):
        key = ids[completion.request.key], completion.sample
        before, now = chosen[key], record_of(key[0], completion)
        if all(getattr(before, name) == getattr(now, name) for name in _DRAWN):
            same += 1
        else:
            differing.append(key)
    first = min(differing, default=None)
    where = None if first is None else f"problem {first[0]}, sample {first[1]}"
    return DrawnAgain(len(chosen), same, where)


def _chosen(
    records: Iterable[Record], requests: Mapping[str, Request], count: int
) -> dict[tuple[str, int], Record]:
    """So many drawn samples of these requests, each as likely as the others, by their places."""
    kept: list[Record] = []
    seen = 0
    for record in records:
        request = requests.get(record.problem_id)
        if request is None or request.beam is not None or not record.is_drawn:
            continue
        seen += 1
        if len(kept) < count:
            kept.append(record)
        elif (place := random.randrange(seen)) < count:
            kept[place] = record
    return {
        (record.problem_id, record.sample): record for record in kept if record.sample is not None
    }
