"""Capacity: whether one sample of a request, or its beams, could ever find room with nothing else
there."""

from __future__ import annotations

from sharegen.engine.cache.prefix_cache import PrefixCache
from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.core.request import Request
from sharegen.engine.schedule.sequence import Sequence, most_tokens
from sharegen.errors import CapacityError


class Capacity:
    """What the block pool and the state slots of one engine have room for."""

    def __init__(self, cache: PrefixCache[Sequence], context_length: int) -> None:
        self._cache = cache
        self._pool = cache.pool
        self._states = cache.states
        self._context_length = context_length

    def check(self, request: Request, max_sequences: int) -> None:
        """Raise CapacityError for a request of which one sample does not fit, or its beams.

        A sample without max_tokens may: it is refused where it gets to the end of the pool.
        """
        if request.rows > max_sequences:
            raise CapacityError(
                f"beam_width is {request.rows}, but {max_sequences} sequences decode "
                "together: follow fewer beams, or raise max_sequences"
            )
        if not self._states.holds(2 + request.rows):
            raise CapacityError(
                f"{self._states.num_slots} slots hold the states of prompts and rows, but the "
                f"request needs {2 + request.rows}: give the KV cache more memory"
            )
        limit = self._asked(request)
        prompt = len(request.prompt_token_ids)
        # In full precision: what is in FP8, the tree says.
        own = self.blocks_at_end(limit) * request.rows
        need = self._pool.blocks_for(prompt) * self._pool.blocks_per_full + own
        if need > self._pool.num_blocks:
            who = "one sample needs" if request.beam is None else f"{request.rows} beams need"
            raise CapacityError(
                f"the KV cache holds {self._pool.num_blocks} blocks of {self._pool.block_size} "
                f"tokens, but {who} {need} ({prompt} prompt tokens and up to {limit} "
                "new ones): give it more memory or lower max_tokens"
            )

    def fits(self, request: Request, leaf: Node) -> bool:
        """Whether the prompt's path fits, too: a block is not shared by two nodes.

        Nor is a slot of states; one more is for a node that moves on.
        """
        if not self._states.holds(len(leaf.path()) + 1 + request.rows):
            return False
        own = self.blocks_at_end(self._asked(request)) * request.rows
        return own <= self._blocks_beside(leaf)

    def most_outputs(self, leaf: Node) -> int:
        """Return the tokens of a sample without max_tokens that the pool holds beside its prompt's
        path.
        """
        return self._blocks_beside(leaf) * self._pool.block_size + 1

    def blocks_at_end(self, length: int) -> int:
        """Blocks of a sample with so many outputs, of which the last is never fed."""
        return max(1, self._pool.blocks_for(length - 1))

    def _asked(self, request: Request) -> int:
        """Output tokens for which a sample must find room before it starts."""
        return 1 if request.is_endless else most_tokens(request, self._context_length)

    def _blocks_beside(self, leaf: Node) -> int:
        """Blocks of the pool that a path leaves, with nothing else there."""
        path = self._cache.room_for(leaf.path())
        return self._pool.num_blocks - path.full_blocks * self._pool.blocks_per_full - path.blocks
