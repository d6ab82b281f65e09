"""How much of the KV cache is in use, and how much of that is wasted.

The terms are those of PagedAttention (Kwon et al., SOSP 2023, figures 2 and 3). Where each request
has a range of memory for all that it may ever write, three things are lost: what is reserved for
tokens to come, what is reserved and never written, and the gaps between the ranges. Here nothing
is reserved but the rest of a block that somebody has begun.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sharegen.engine.cache.prefix_cache import PrefixCache
from sharegen.engine.schedule.batch_rows import BatchRows
from sharegen.engine.schedule.sequence import Sequence


@dataclass(frozen=True)
class CacheUsage:
    """Places for tokens at one moment, of which each block has `block_size`.

    In use is what a request holds, or a sample that has ended keeps for forks; not what stays of
    prompts in case others come for them. used: places with a token in them, or one that is being
    swapped in or computed again. ahead: empty ones in
    blocks in use that their prompt or sample may still fill. internal: empty ones there that nobody
    will fill. external: free ones that no shared prompt can have, though single samples can.
    """

    used: int = 0
    ahead: int = 0
    internal: int = 0
    external: int = 0

    @classmethod
    def of(cls, cache: PrefixCache[Sequence], rows: BatchRows) -> CacheUsage:
        """What it is now, from counts that are kept as things change."""
        pool = cache.pool
        reserved = (pool.num_used - cache.idle_blocks) * pool.block_size
        empty, fillable = rows.empty_places()
        ahead = fillable + cache.awaited
        internal = empty - fillable + pool.wasted - cache.idle_wasted
        return cls(reserved - ahead - internal, ahead, internal, pool.stranded)

    @property
    def reserved(self) -> int:
        """Places of all blocks in use."""
        return self.used + self.ahead + self.internal

    def counts(self, of_each: int = 1) -> dict[str, int]:
        """Return the counts by name, times `of_each`."""
        places = {
            "reserved": self.reserved, "used": self.used, "ahead": self.ahead,
            "internal": self.internal, "external": self.external,
        }  # fmt: skip
        return {name: count * of_each for name, count in places.items()}


@dataclass
class Meter:
    """Sums up the usage of the KV cache over the steps of a job.

    peak: of the step with most in use. in_steps: summed over all decoding steps.
    """

    peak: CacheUsage = field(default_factory=CacheUsage)
    in_steps: dict[str, int] = field(default_factory=lambda: CacheUsage().counts())

    def note(self, usage: CacheUsage, decodes: bool) -> None:
        """A step has been launched, which fills the places that it writes to."""
        if (usage.reserved, usage.used) > (self.peak.reserved, self.peak.used):
            self.peak = usage
        if decodes:
            for name, count in usage.counts().items():
                self.in_steps[name] += count

    def forget_peak(self) -> None:
        """Begin the peak anew, between two jobs of an engine."""
        self.peak = CacheUsage()
