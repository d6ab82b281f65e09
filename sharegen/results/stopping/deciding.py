"""When the samples of a problem are enough: rules that read them in the order of their indices.

With continuous batching short samples finish first, and a rule that reads what has finished would
prefer short answers. So all rules read the longest prefix of indices that has finished: what they
decide depends only on the samples, not on a batch, a machine or an interruption. Samples that
finish beyond the prefix that decided are not waited for and do not count.

Every rule answers one question: how many more samples does it need at least? At 0 it has decided;
until then that many are required, whatever they say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from sharegen.common.stop_rule import StopRule


@dataclass
class Standing:
    """How the samples of a prefix voted.

    read: how many there are; right: of them. counts, first: votes for each answer, and the index
    at which it appeared. leader, second: the first two answers, as the vote orders them: by votes,
    then by who appeared first.
    last: the answer of the last sample; streak: how many samples in a row gave it.
    """

    read: int = 0
    right: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    leader: str | None = None
    second: str | None = None
    last: str | None = None
    streak: int = 0

    def add(self, answer: str | None, right: bool) -> None:
        """The next sample; answer: as it is counted, None where it does not vote."""
        if answer is not None:
            self.counts[answer] = self.counts.get(answer, 0) + 1
            self.first.setdefault(answer, self.read)
            self._place(answer)
        self.streak = 0 if answer is None else self.streak + 1 if answer == self.last else 1
        self.last = answer
        self.right += right
        self.read += 1

    def _place(self, answer: str) -> None:
        """Move the answer to its place, now that it has one more vote."""
        if answer == self.leader:
            return
        if self.leader is None or self._before(answer, self.leader):
            self.leader, self.second = answer, self.leader
        elif answer != self.second and (self.second is None or self._before(answer, self.second)):
            self.second = answer

    def _before(self, answer: str, other: str) -> bool:
        votes, others = self.counts[answer], self.counts[other]
        return votes > others or (votes == others and self.first[answer] < self.first[other])

    @property
    def lead(self) -> tuple[int, int]:
        """The votes of the two leading answers."""
        return self.counts.get(self.leader or "", 0), self.counts.get(self.second or "", 0)


def least(rule: StopRule, samples: int, standing: Standing) -> int:
    """How many further samples the rule takes at the least; 0: it has decided.

    samples: of the problem at most. Fewer never suffice, and so many do if they say the right
    thing.
    """
    left = samples - standing.read
    return min(left, _LEAST[rule.kind](rule, left, standing))


def _decided(rule: StopRule, left: int, standing: Standing) -> int:
    """Samples needed until no other answer can win; ties go as in the vote."""
    ahead, behind = standing.lead
    more = max(0, math.ceil((behind + left - ahead) / 2))
    ties = ahead + more == behind + left - more
    if ties and standing.second is not None:
        assert standing.leader is not None
        return more + (standing.first[standing.leader] > standing.first[standing.second])
    return more


def _confident(rule: StopRule, left: int, standing: Standing) -> int:
    """Adaptive-Consistency's Beta criterion (Aggarwal et al. 2023, section 3).

    With a uniform prior over the shares of the first two, the chance that the leader's is larger.
    """
    ahead, behind = standing.lead
    assert rule.value is not None
    return max(0, _leads(str(rule.value)).votes_for(behind) - ahead)


def _window(rule: StopRule, left: int, standing: Standing) -> int:
    """One stopping window without a dissenter (early-stopping self-consistency).

    Li et al. 2024, section 3. Windows do not overlap, since samples are drawn a window at a time.
    A window with a sample that has no answer is not unanimous.
    """
    size = int(rule.value or 0)
    inside = standing.read % size
    if standing.read and inside == 0 and standing.streak >= size:
        return 0
    return size - inside if standing.streak >= inside else 2 * size - inside


def _right(rule: StopRule, left: int, standing: Standing) -> int:
    return max(0, int(rule.value or 0) - standing.right)


_LEAST = {"decided": _decided, "confident": _confident, "window": _window, "right": _right}


class _Leads:
    """For each number of votes of the runner-up, the fewest of the leader that are convincing.

    The leader's share is the larger one with the chance that a fair coin shows more than `second`
    heads in `leader + second + 1` throws: the Beta integral of whole parameters, in whole numbers.
    """

    def __init__(self, confidence: Fraction) -> None:
        self._doubt = 1 - confidence
        self._found: list[int] = []
        self._throws = 0
        self._heads = 1  # ways of as many heads as the runner-up has votes
        self._below = 1  # ways of at most so many

    def votes_for(self, second: int) -> int:
        while len(self._found) <= second:
            if self._found:
                self._throw(more=1)
            while self._throws == 0 or self._below > self._doubt * 2**self._throws:
                self._throw(more=0)
            self._found.append(self._throws - len(self._found) - 1)
        return self._found[second]

    def _throw(self, more: int) -> None:
        """One throw more, and `more` heads allowed."""
        heads = len(self._found) - more
        self._below = 2 * self._below - self._heads
        self._throws += 1
        self._heads = self._heads * self._throws // (self._throws - heads)
        if more:
            self._heads = self._heads * (self._throws - heads) // (heads + 1)
            self._below += self._heads


@lru_cache(maxsize=16)
def _leads(confidence: str) -> _Leads:
    return _Leads(Fraction(confidence))


class Deciding:
    """One problem's samples as they come, in whatever order.

    standing: of the prefix that is read so far.
    """

    def __init__(self, rule: StopRule, samples: int) -> None:
        self.rule = rule
        self.samples = samples
        self.standing = Standing()
        self._beyond: dict[int, tuple[str | None, bool]] = {}
        self._least = least(rule, samples, self.standing)

    def note(self, sample: int, answer: str | None, right: bool = False) -> bool:
        """A sample has come; whether more has been read by it. What failed has no answer."""
        if self.is_decided or sample >= self.samples:
            return False
        self._beyond[sample] = (answer, right)
        before = self.standing.read
        while not self.is_decided and self.standing.read in self._beyond:
            self.standing.add(*self._beyond.pop(self.standing.read))
            self._least = least(self.rule, self.samples, self.standing)
        if self.is_decided:
            self._beyond.clear()
        return self.standing.read > before

    @property
    def is_decided(self) -> bool:
        """Whether nothing more is to be drawn: the rule says so, or all is there."""
        return self._least == 0

    @property
    def counted(self) -> int:
        """Samples that count, the first by index: all that decided, or that can be read so far."""
        return self.standing.read

    @property
    def required(self) -> int:
        """Samples with an index below it are wanted, whatever those to come say."""
        return self.standing.read + self._least
