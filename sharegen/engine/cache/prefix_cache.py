"""The prompts in the KV cache: the nodes of the prefix tree with their blocks, and who uses them.

A node is held by the requests whose prompts pass through it. What several prompts shared stays when
the last of them has gone, for those to come, until its memory is needed: least recently used first.
A node where one prompt ended goes at once. The KV of sequences that have ended stays while there is
room, where someone may fork them: what they have in common with a fork becomes a node in place,
made of their own blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from sharegen.engine.cache.block_pool import BlockPool, BlocksNeeded
from sharegen.engine.cache.prefix_tree import Node, PrefixTree, Prompt, Tokens, walk
from sharegen.engine.cache.prompt_logprobs import has_logprobs
from sharegen.engine.cache.state_slots import NO_SLOT, StateSlots
from sharegen.engine.cache.stored_kv import NodeKV, Suffix
from sharegen.engine.core.request import Request

Kept = TypeVar("Kept", bound=Suffix)


class PrefixCache(Generic[Kept]):
    """The tree, and what is stored of its nodes.

    Args:
        pool: the blocks of the KV cache.
        tree: an empty tree, which says what prompts share; by default all that is worth it.
        states: slots for the states of nodes, and of rows, where a model keeps any.
        marks_alone: whether nodes are marked that one sample alone reads; they are where such have
            blocks of another kind.

    Attributes:
        stored: the KV of every node that someone holds, and of the idle ones.
        idle: nodes that nobody holds, the least recently used first, a child before its parent.
        kept: suffixes of samples that have ended, there for forks, the oldest first.
        tokens_computed: tokens of prompts that were computed so far.
        tokens_recomputed: those of them whose KV had been given up.
        tokens_found: tokens of nodes that were idle when someone came for them.
        awaited: places of nodes that have their blocks and whose tokens are still to be computed.
        marks_alone: as it is said above, until an engine says otherwise between two jobs.
        keeps_leaves: whether a node where one prompt ended stays, too, as the next prompt may begin
            like it; by default such a node goes at once.
    """

    def __init__(
        self,
        pool: BlockPool,
        tree: PrefixTree | None = None,
        states: StateSlots | None = None,
        marks_alone: bool = False,
    ) -> None:
        self.pool = pool
        self.marks_alone = marks_alone or pool.blocks_per_full > 1
        self.states = StateSlots() if states is None else states
        self.tree = PrefixTree(pool.block_size) if tree is None else tree
        self.stored: dict[Node, NodeKV] = {}
        self.idle: dict[Node, None] = {}
        self.kept: dict[Kept, None] = {}
        self.tokens_computed = 0
        self.tokens_recomputed = 0
        self.tokens_found = 0
        self.awaited = 0
        self.keeps_leaves = False
        self._idle_full_blocks = 0
        self._idle_tokens = 0
        self._placed: dict[Node, None] = {}  # the nodes that have blocks, in the order of placing
        self._moved: dict[Node, int] = {}  # of the last batch's nodes the slots before

    # -- prompts ------------------------------------------------------------------------------

    def insert(self, requests: Seq[Request], splits: Seq[Seq[int]] | None = None) -> list[Node]:
        """Put prompts into the tree.

        Args:
            requests: the requests of the prompts.
            splits: where the path of each is split, unless the requests say it.

        Returns:
            For each request the node where its prompt ends, held by no one yet.
        """

        def joins(node: Node, standing: Node) -> bool:
            below = (requests[i] for step in walk(node.children) for i in step.requests)
            return all(self._learns(request, standing) for request in below)

        wanting = any(request.params.prompt_logprobs is not None for request in requests)
        prompts = [request.tokens for request in requests]
        told = [request.splits for request in requests if request.splits is not None]
        assert len(told) in (0, len(requests)), "some of the requests are of a larger tree"
        return self.tree.insert(
            prompts,
            joins=joins if wanting else lambda *_: True,
            splits=told or splits,
            alone=[request.is_alone(self.pool.readers) for request in requests]
            if self.marks_alone
            else None,
        )

    def plant(self, prompt: Prompt) -> Node:
        """Add a node of its own for a whole prompt, shared with no other."""
        return self.tree.hang(None, prompt)

    def prune(self) -> None:
        """Take out the nodes that no one holds."""
        for node in reversed(list(self.tree.nodes())):
            kv = self.stored.get(node)
            if (kv is None or kv.users == 0) and not node.children and node not in self.idle:
                self._remove(node)

    def hold(self, leaf: Node) -> None:
        """Note one more user of the path down to a leaf."""
        for node in leaf.path():
            if node not in self.stored:
                self.stored[node] = self._unplaced(node)
            if node in self.idle:
                self._wake(node)
                self.tokens_found += node.length
            self.stored[node].users += 1

    def release(self, leaf: Node) -> None:
        """Note one user less of the path down to a leaf.

        Nodes without users are idle where others may come for them; the rest goes with its blocks.
        """
        for node in reversed(leaf.path()):
            kv = self.stored[node]
            kv.users -= 1
            if kv.users:
                continue
            is_shared = (node is not leaf or self._outlives(node)) and not node.fork
            # A state is large, and its slot is wanted for a row.
            if is_shared and kv.computed == node.length and not self.states.are_kept:
                self.idle[node] = None
                self._idle_full_blocks += len(kv.blocks) // self.pool.blocks_per_full
                self._idle_tokens += node.length
            else:
                self._remove(node)

    def _outlives(self, leaf: Node) -> bool:
        """Whether others may come for a node where the prompt ended that had it."""
        is_long = leaf.length >= self.pool.block_size
        return bool(leaf.children) or (self.keeps_leaves and is_long and not self.stored[leaf].fp8)

    def may_split(self, node: Node) -> bool:
        """Whether a standing node can be cut in two."""
        return node in self.stored and self.stored[node].logprobs is None

    def split(self, node: Node, length: int) -> Node:
        """Cut a node in two: its first `length` tokens, whole blocks, become a node above it.

        The KV stays where it lies, and who uses the node uses both. Returns the upper one.
        """
        assert length % self.pool.block_size == 0 and not self.states.are_kept
        upper, kv = self.tree.split(node, length), self.stored[node]
        above = self.stored[upper] = NodeKV(kv.pool_blocks, kv.fp8)
        above.users = kv.users
        above.computed, above.lost = min(kv.computed, length), min(kv.lost, length)
        kv.computed, kv.lost = kv.computed - above.computed, kv.lost - above.lost
        if node in self._placed:
            self._placed[upper] = None
            blocks = self.pool.blocks_for(length) * kv.pool_blocks
            above.blocks, kv.blocks = kv.blocks[:blocks], kv.blocks[blocks:]
            above.contiguous = kv.contiguous
        if node in self.idle:
            # A child is given up before its parent, so what is above follows again.
            for each in [upper, *upper.path()[-2::-1]]:
                if each is upper or each in self.idle:
                    self.idle.pop(each, None)
                    self.idle[each] = None
            if node.length < self.pool.block_size and not node.children:
                self._wake(node)
                self._remove(node)  # too short for anyone to come for
        return upper

    @property
    def idle_blocks(self) -> int:
        """Blocks of nodes that nobody holds."""
        return self._idle_full_blocks * self.pool.blocks_per_full

    @property
    def idle_wasted(self) -> int:
        """Places of these that nobody is going to fill."""
        places = self._idle_full_blocks * self.pool.block_size - self._idle_tokens
        return places * self.pool.blocks_per_full

    def _wake(self, node: Node) -> None:
        del self.idle[node]
        self._idle_full_blocks -= len(self.stored[node].blocks) // self.pool.blocks_per_full
        self._idle_tokens -= node.length

    def forget_idle(self) -> None:
        """Forget what nobody holds."""
        while self.idle:
            self._forget_least_used()

    def _forget_least_used(self) -> None:
        node = next(iter(self.idle))
        self._wake(node)
        self._remove(node)

    def clear(self) -> None:
        """Forget all: nothing is stored, and the tree is empty, whatever was interrupted
        half-way.
        """
        for suffix in self.kept:
            self.pool.free(suffix.blocks)
        self.kept.clear()
        for node in list(self._placed):
            self._give_up(node)
        self.stored.clear()
        self.idle.clear()
        self._idle_full_blocks = self._idle_tokens = 0
        self.tree.clear()

    def _remove(self, node: Node) -> None:
        self._give_up(node)
        self.stored.pop(node, None)
        self.tree.remove(node)

    # -- their KV -----------------------------------------------------------------------------

    def is_resident(self, leaf: Node) -> bool:
        """Whether the whole path's KV has been computed."""
        return all(self.stored[node].computed == node.length for node in leaf.path())

    def _unplaced(self, node: Node) -> NodeKV:
        """What few samples alone read lies in FP8 or as latents, where the cache has such."""
        fp8 = self.pool.blocks_per_full > 1 and (node.alone or node.fork)
        return NodeKV(1 if fp8 else self.pool.blocks_per_full, fp8)

    def room_for(self, nodes: Iterable[Node]) -> BlocksNeeded:
        """What the nodes take: each begins a block of its own."""
        full_blocks = blocks = 0
        for node in nodes:
            kv = self.stored.get(node) or self._unplaced(node)
            count = self.pool.blocks_for(node.length)
            blocks += count if kv.fp8 else 0
            full_blocks += 0 if kv.fp8 else count
        return BlocksNeeded(full_blocks, blocks)

    def missing(self, leaf: Node) -> BlocksNeeded:
        """What the path needs besides what it has."""
        return self.room_for(node for node in leaf.path() if node not in self._placed)

    def place(self, node: Node) -> None:
        """Give a node its blocks, which must be free, unless it has them."""
        if node not in self._placed:
            kv = self.stored[node]
            allocate = self.pool.allocate_node if kv.fp8 else self.pool.allocate_full_blocks
            count = self.pool.blocks_for(node.length)
            found = allocate(count)
            assert found is not None, "a checked request does not fit the empty pool"
            kv.blocks, kv.contiguous = found
            left = count * self.pool.block_size - node.length
            self.pool.waste(int(kv.blocks[-1]), left * kv.pool_blocks)
            self.awaited += (node.length - kv.computed) * kv.pool_blocks
            self._placed[node] = None

    def missing_states(self, leaf: Node) -> int:
        """Slots that prefilling the path takes: each node moves on to another one."""
        if not self.states.are_kept:
            return 0
        return sum(self.stored[node].computed < node.length for node in leaf.path())

    def move_state(self, node: Node) -> tuple[int, int]:
        """The slots that the node's next chunk reads its states from and writes them to.

        A batch that finds no memory has moved some layers' states and not others', so it leaves
        those alone that it began from.
        """
        kv = self.stored[node]
        before = kv.state
        if kv.computed == 0:
            before = self.states.zero if node.parent is None else self.stored[node.parent].state
        if node not in self._moved:
            self._moved[node] = kv.state
            kv.state = self.states.take()
        return before, kv.state

    def settle_states(self) -> None:
        """The last batch ran: what its nodes' states were before is not needed any more."""
        for before in self._moved.values():
            self.states.give_back(before)
        self._moved.clear()

    def note_computed(self, node: Node, end: int) -> None:
        """The node's next tokens, up to `end`, are being prefilled."""
        kv = self.stored[node]
        self.tokens_computed += end - kv.computed
        self.tokens_recomputed += max(0, min(end, kv.lost) - kv.computed)
        self.awaited -= (end - kv.computed) * kv.pool_blocks
        kv.computed = end

    def forget_computed(self, node: Node, start: int) -> None:
        """The node's tokens from `start` on were not prefilled after all."""
        kv = self.stored[node]
        self.tokens_computed -= kv.computed - start
        self.tokens_recomputed -= max(0, min(kv.computed, kv.lost) - start)
        self.awaited += (kv.computed - start) * kv.pool_blocks
        kv.computed = start
        if node in self._moved:
            self.states.give_back(kv.state)
            kv.state = self._moved.pop(node)

    def drop(self, unless: Iterable[Node]) -> bool:
        """Give up the KV of all nodes but those on the paths of `unless`; whether there was any.

        They are prefilled again when their turn comes.
        """
        self.forget_idle()
        needed = {node for leaf in unless for node in leaf.path()}
        ahead = [node for node in self._placed if node not in needed]
        for node in ahead:
            self._give_up(node)
        return bool(ahead)

    def drop_all_but(self, leaf: Node) -> None:
        """Give up all KV, idle, kept or ahead of its time, but that of one path."""
        self.forget_kept()
        self.drop(unless=[leaf])

    def _give_up(self, node: Node) -> None:
        if node in self._placed:
            del self._placed[node]
            kv = self.stored[node]
            self.awaited -= (node.length - kv.computed) * kv.pool_blocks
            self.pool.free(kv.give_up())
            self.states.give_back(self._moved.pop(node, NO_SLOT))
            self.states.give_back(kv.state)
            kv.state = NO_SLOT

    # -- kept suffixes ------------------------------------------------------------------------

    def keep(self, suffix: Kept) -> None:
        """A sample has ended: its blocks stay where they are."""
        self.kept[suffix] = None
        self.hold(suffix.leaf)

    def forget_oldest(self) -> None:
        """Keep the KV of the first that ended no longer."""
        suffix = next(iter(self.kept))
        del self.kept[suffix]
        self.pool.free(suffix.blocks)
        suffix.blocks = []
        self.release(suffix.leaf)

    def forget_kept(self) -> None:
        """Keep the KV of no sample that has ended."""
        while self.kept:
            self.forget_oldest()

    def spare(self, room: BlocksNeeded) -> bool:
        """Whether so much is free, after what is idle or kept was given up as far as need be.

        Nothing is given up where all of it would not do.
        """
        if not self.can_spare(room):
            return False
        while not self.pool.has(room):
            if self.idle:
                self._forget_least_used()
            else:
                self.forget_oldest()
        return True

    def can_spare(self, room: BlocksNeeded) -> bool:
        """Whether so much is free, idle or kept."""
        if self.pool.would_have_full_blocks(room, self._idle_full_blocks):
            return True
        return bool(self.kept) and self.pool.would_have(room, self._held_by_no_one_else())

    def _held_by_no_one_else(self) -> Iterable[Iterable[int]]:
        """The blocks of each owner that is idle or goes with what is kept."""
        users = Counter(node for suffix in self.kept for node in suffix.leaf.path())
        owners: list[NodeKV | Suffix] = [*self.kept, *(self.stored[node] for node in self.idle)]
        owners += [kv for node, count in users.items() if (kv := self.stored[node]).users == count]
        return [owner.blocks for owner in owners]

    def fork(self, request: Request, suffix: Suffix | None) -> Node:
        """The node where a prompt ends that is that of a sample and its outputs.

        The KV that the sample has of them becomes a node below its leaf, made of the blocks in
        which it lies: each has one more owner, and the sample writes on behind. Without a suffix,
        or where the prompt's log-probabilities are wanted, the prompt hangs below the nodes that
        it matches. Where there are states, the sample's own have gone on beyond: what it drew is
        computed again from the leaf's.
        """
        prompt = request.tokens
        if suffix is None or request.params.prompt_logprobs is not None:
            parent = self.tree.deepest_match(prompt, lambda node: self._learns(request, node))
            return self.tree.hang(parent, prompt[parent.end if parent else 0 :], fork=True)
        leaf = suffix.leaf
        # The logits of the last token are wanted, so it is computed anew if it ever was.
        is_there = bool(suffix.blocks) and not self.states.are_kept
        length = min(suffix.fed, len(prompt) - leaf.end - 1) if is_there else 0
        if length > 0:
            leaf = self._node_of(suffix, prompt[leaf.end : leaf.end + length])
        return self.tree.hang(leaf, prompt[leaf.end :], fork=True)

    def fork_anew(self, request: Request, splits: Seq[int]) -> Node:
        """The node where such a prompt ends, of which nobody's KV is taken over.

        splits: where the path of the parent's prompt is split, which the fork's follows but for a
        last node that is too short for several.
        """
        ends = list(splits)
        if ends and ends[-1] - (ends[-2] if len(ends) > 1 else 0) < self.pool.block_size:
            ends.pop()
        [leaf] = self.insert([replace(request, splits=[*ends, len(request.tokens)], alone=0)])
        return leaf

    def _node_of(self, suffix: Suffix, tokens: Tokens) -> Node:
        """The node of a sample's first outputs, made of its blocks unless it stands already."""
        for child in suffix.leaf.children:
            if child.forked and np.array_equal(child.tokens, tokens):
                return child
        node = self.tree.hang(suffix.leaf, tokens, fork=True)
        kv = self.stored[node] = self._unplaced(node)
        blocks = suffix.blocks[: self.pool.blocks_for(node.length)]
        kv.blocks = np.array(blocks, dtype=np.int32)
        kv.contiguous = False
        kv.computed = node.length
        self._placed[node] = None
        for block in blocks:
            self.pool.share(block)
        return node

    def _learns(self, request: Request, node: Node) -> bool:
        """Whether a request that goes on beyond the node learns there what it wants to know."""
        return has_logprobs(self.stored, node, request)

    def check_integrity(self, running: Iterable[Suffix]) -> None:
        """Assert that every block and slot has its owner, and every node its users."""
        nodes = set(self.tree.nodes())
        assert set(self.stored) == nodes
        owners: list[NodeKV | Suffix] = [*self.stored.values(), *running, *self.kept]
        self.pool.check_integrity(owner.blocks for owner in owners)
        self.states.check_integrity([*(one.state for one in owners), *self._moved.values()])
        for kv in self.stored.values():
            assert (kv.state != NO_SLOT) == (self.states.are_kept and kv.computed > 0)
        assert self.idle_blocks == sum(len(self.stored[node].blocks) for node in self.idle)
        assert self._idle_tokens == sum(node.length for node in self.idle)
        placed = [(node, kv) for node, kv in self.stored.items() if kv.placed]
        assert self.awaited == sum(
            (node.length - kv.computed) * kv.pool_blocks for node, kv in placed
        )
        assert set(self._placed) == {node for node, kv in self.stored.items() if kv.placed}
        for node, kv in self.stored.items():
            assert (kv.users == 0) == (node in self.idle)
            assert kv.users > 0 or (kv.computed == node.length and not kv.fp8)
            assert len(kv.blocks) in (0, self.pool.blocks_for(node.length) * kv.pool_blocks)
            assert kv.pool_blocks == (1 if kv.fp8 else self.pool.blocks_per_full)
            assert not node.children or node.forked or node.length >= self.pool.block_size
