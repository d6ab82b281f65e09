"""What voting bought: one sample's accuracy against the vote's, and a problem that shows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sharegen.results.scoring.vote import Vote
from sharegen.results.stopping.stopped import Stopped


@dataclass(frozen=True)
class Accuracy:
    """Accuracy over the problems whose gold answer is known; shares lie in 0..1.

    sample: samples that are right, of all samples; one without an answer is wrong. Where a rule
        stopped the problems, the chance of one sample, by an estimate that is not biased by it.
    vote: problems whose vote is right, of all problems; no vote is wrong.
    """

    problems: int
    samples: int
    sample: float
    vote: float


def accuracy(votes: Iterable[Vote], stopped: Stopped | None = None) -> Accuracy | None:
    """Measure the votes that have a gold answer to be measured by; None if there are none.

    stopped: the rule that stopped their problems, if one did.
    """
    known = [vote for vote in votes if vote.correct is not None]
    samples = sum(vote.samples for vote in known)
    if not samples:
        return None
    if stopped is None:
        sample = sum(vote.right_samples for vote in known) / samples
    elif stopped.enough is not None:
        from sharegen.results.scoring.passk import pass_at_k_when_enough

        counts = ((vote.samples, vote.right_samples) for vote in known)
        chances = [pass_at_k_when_enough(n, c, 1, stopped.enough) for n, c in counts]
        sample = sum(chances) / len(chances)
    else:
        fixed = [vote.among(stopped.first) for vote in known]
        sample = sum(right for _, right in fixed) / sum(number for number, _ in fixed)
    return Accuracy(
        problems=len(known),
        samples=samples,
        sample=sample,
        vote=sum(bool(vote.correct) for vote in known) / len(known),
    )


def rescued(votes: Iterable[Vote]) -> Vote | None:
    """The clearest problem where most samples are wrong and the vote is right.

    Clearest is the largest lead over the second answer: wrong samples scatter, right ones agree.
    A vote won by a tie is no rescue. None if there is no such problem.
    """

    def lead(vote: Vote) -> int:
        second = list(vote.counts.values())[1:2]
        return vote.votes - sum(second)

    candidates = [
        vote
        for vote in votes
        if vote.correct and 2 * vote.right_samples < vote.samples and lead(vote)
    ]
    return max(candidates, key=lead, default=None)
