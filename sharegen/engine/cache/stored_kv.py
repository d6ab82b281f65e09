"""What is stored: the KV of a node of the tree, and the KV of one sample's own tokens."""

from __future__ import annotations

import numpy as np

from sharegen.engine.cache.block_pool import Blocks
from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.cache.state_slots import NO_SLOT
from sharegen.engine.core.request import TokenLogprobs

_NO_BLOCKS: Blocks = np.empty(0, dtype=np.int32)


class NodeKV:
    """The KV of one node, as long as someone uses it.

    Args:
        pool_blocks: how many blocks of the pool one block of the node takes: 1 where it is an FP8
            block, else the pool's `blocks_per_full`.
        fp8: whether its blocks are of the kind of samples' own tokens: FP8 blocks, or of latents.

    Attributes:
        users: requests with unfinished samples, and kept sequences, whose path passes through the
            node.
        blocks: the blocks of the pool where it lies, none before it is placed.
        contiguous: whether these are one ascending run.
        state: the slot of the states after the tokens that have been prefilled, if there are
            mixers.
        computed: tokens that have been prefilled.
        lost: how many had been when the KV was given up.
        logprobs: the log-probabilities of the node's tokens, where a request wants them.
    """

    __slots__ = ("blocks", "computed", "contiguous", "fp8", "logprobs", "lost", "pool_blocks",
                 "state", "users")  # fmt: skip

    def __init__(self, pool_blocks: int = 1, fp8: bool = False) -> None:
        self.pool_blocks = pool_blocks
        self.fp8 = fp8
        self.users = 0
        self.blocks = _NO_BLOCKS
        self.contiguous = True
        self.state = NO_SLOT
        self.computed = 0
        self.lost = 0
        self.logprobs: NodeLogprobs | None = None

    @property
    def placed(self) -> bool:
        return len(self.blocks) > 0

    @property
    def places(self) -> Blocks:
        """Return the node's own blocks, numbered among those of its kind."""
        each = self.pool_blocks
        return self.blocks if each == 1 else self.blocks[::each] // each

    def give_up(self) -> Blocks:
        """Forget where it lay; returns the blocks, which are still to be freed."""
        blocks, self.blocks = self.blocks, _NO_BLOCKS
        self.lost, self.computed = max(self.lost, self.computed), 0
        return blocks


class NodeLogprobs:
    """What the rows of one node say.

    top: how many of the likeliest tokens are wanted, by rows from `first` on. own: entries of the
    node's tokens, without the first; following: by token, of what may come after the node. Both
    are laid out when the rows are prefilled and filled in when the numbers have come.
    """

    __slots__ = ("first", "following", "own", "top")

    def __init__(self, top: int, length: int) -> None:
        self.top = top
        self.first = length
        self.own: list[TokenLogprobs | None] = [None] * (length - 1)
        self.following: dict[int, TokenLogprobs | None] = {}


class Suffix:
    """The KV of one sample's own tokens, below the node where its prompt ends.

    leaf: that node. blocks: where the KV lies. state: the slot of its states. fed: how many of the
    tokens have been given to the model, in steps launched so far.
    """

    __slots__ = ("blocks", "fed", "leaf", "state")

    def __init__(self, leaf: Node) -> None:
        self.leaf = leaf
        self.blocks: list[int] = []
        self.state = NO_SLOT
        self.fed = 0
