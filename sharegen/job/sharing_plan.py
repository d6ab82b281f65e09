"""What a job shares: the tree of its prompts, and what that saves in prefill and memory.

Built from token ids and the model's sizes alone, so it can be told before anything is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sharegen.common.stop_rule import StopRule
from sharegen.engine.cache.prefix_tree import Node, PrefixTree, walk
from sharegen.job.cut import copied_by_workers
from sharegen.results.stopping.deciding import Standing, least

_SHOWN_FIRST, _SHOWN_LAST, _SHOWN_LEVELS = 2, 1, 12


Each = int | Sequence[int]
"""A value for all problems, or one for each by their numbers in the tree."""


@dataclass(frozen=True)
class Branch:
    """A node of the tree as it is shown; its KV is stored and computed once.

    tokens: its own; problems, samples: that pass through it; problem: the id of the problem that
    ends here. repeat: how many nodes, side by side or too deep to show, this one stands for (then
    `tokens` is their sum).
    """

    tokens: int
    problems: int
    samples: int
    problem: str | None = None
    repeat: int = 1
    children: list[Branch] = field(default_factory=list)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Branch:
        children = [cls.from_json(child) for child in values["children"]]
        return cls(**{**values, "children": children})


@dataclass(frozen=True)
class LevelMode:
    """One level of the tree (0: the roots) as the first batch reads it.

    nodes: at this level; apart: how many of them each row reads by itself. once, each:
    microseconds of a layer if all were read once for all rows below, and if by each row.
    """

    level: int
    nodes: int
    apart: int
    once: float
    each: float


@dataclass(frozen=True)
class SharingPlan:
    """The numbers of a job; bytes where the name says so, tokens otherwise.

    asked: every sample's whole prompt; computed: the tree's tokens, each once; duplicated: of
        these, the ones that several prompts share in branches shorter than a block.
    kv_shared_bytes, kv_unshared_bytes: of the prompts, stored once or once a sample.
    latent_bytes, spread_bytes: of a token that one sample alone reads, and of one that several do,
        where the first is kept as a latent; else 0.
    state_bytes: of what the mixers of a model keep of a sequence, 0 without any; state_slots: that
        an engine has of these. A node keeps one at its end, and every running sequence has its own.
    fit: sequences that decode together in one engine; waves: how often all are filled.
    workers, copied: engines that share the job, and the prompt tokens that are computed once more
        because several of them need these. ranks: that the model of each is cut among, and
        weights_bytes those of one; the bytes of KV, too, are what one of them stores.
    gpu_bytes: the memory of the GPU that it was asked for; 0 for this machine's device.
    rule: by which problems stop early, if by one; wave: samples of each that start first, for that
        many are needed whatever they say; resident: whether the prompts of all that run stay in
        the KV cache until they are decided.
    readings: the attention mode of each level of the tree on a GPU; none on a CPU.
    uneven: whether problems have different numbers of samples; max_tokens is of the longest.
    saved_by_order: prompt tokens that are not computed for `--reorder`; None without it.
    whole: problems that share nothing after all, for there are too few slots for the states of all
        nodes that their prompts are made of.
    golds: problems whose gold answer is known; None where the recipe looks for none.
    """

    problems: int
    samples: int
    max_tokens: int
    asked: int
    computed: int
    duplicated: int
    nodes: int
    kv_shared_bytes: int
    kv_unshared_bytes: int
    kv_suffix_bytes: int
    kv_cache_bytes: int
    fit: int
    waves: int
    branches: list[Branch]
    workers: int = 1
    copied: int = 0
    ranks: int = 1
    weights_bytes: int = 0
    gpu_bytes: int = 0
    rule: str | None = None
    wave: int = 0
    resident: bool = True
    state_bytes: int = 0
    state_slots: int = 0
    readings: list[LevelMode] = field(default_factory=list)
    uneven: bool = False
    saved_by_order: int | None = None
    whole: int = 0
    golds: int | None = None
    latent_bytes: int = 0
    spread_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SharingPlan:
        branches = [Branch.from_json(branch) for branch in values["branches"]]
        found = [LevelMode(**mode) for mode in values["readings"]]
        return cls(**{**values, "branches": branches, "readings": found})


def make_plan(
    tree: PrefixTree,
    prompts: Sequence[Sequence[int]],
    ids: Sequence[str],
    samples: Each,
    max_tokens: Each,
    *,
    num_blocks: int,
    kv_bytes_per_token: int,
    max_sequences: int,
    workers: int = 1,
    rule: StopRule | None = None,
    width: int = 1,
    state_bytes: int = 0,
    state_slots: int | None = None,
) -> SharingPlan:
    """Make the plan of `samples` completions of up to `max_tokens` tokens for each prompt.

    samples, max_tokens: one for all prompts, or one for each. tree: of the prompts; ids: their
    names. num_blocks: blocks of the KV cache, of so many bytes a token, and max_sequences, of each
    worker. rule: by which problems stop early. width: how many of the blocks one takes that several
    samples read. state_bytes, state_slots: of the states that the model's mixers keep, if any.
    """
    counts = each_of(samples, len(prompts))
    asked = sum(count * len(prompt) for count, prompt in zip(counts, prompts, strict=True))
    total = sum(counts)
    longest = max(each_of(max_tokens, len(prompts)))
    wave = max(counts) if rule is None else least(rule, max(counts), Standing())
    in_waves = fitting_sequences(
        tree, [min(wave, count) for count in counts], max_tokens, num_blocks, width, state_slots
    )
    fitting = fitting_sequences(tree, samples, max_tokens, num_blocks, width, state_slots)
    fit = min(fitting, max_sequences, total)
    stored = sum(node.length * (1 if node.alone else width) for node in tree.nodes())
    return SharingPlan(
        problems=len(prompts),
        samples=total,
        max_tokens=longest,
        asked=asked,
        computed=tree.num_tokens,
        duplicated=tree.num_duplicated,
        nodes=sum(1 for _ in tree.nodes()),
        kv_shared_bytes=stored * kv_bytes_per_token,
        kv_unshared_bytes=asked * kv_bytes_per_token,
        kv_suffix_bytes=longest * kv_bytes_per_token,
        kv_cache_bytes=num_blocks * tree.block_size * kv_bytes_per_token,
        fit=fit,
        waves=math.ceil(total / (fit * workers)) if fit else 0,
        branches=_branches(tree, ids, counts),
        uneven=len(set(counts)) > 1,
        workers=workers,
        copied=copied_by_workers(tree, workers),
        rule=None if rule is None else rule.named,
        wave=wave,
        resident=in_waves >= min(max_sequences, sum(min(wave, count) for count in counts)),
        state_bytes=state_bytes,
        state_slots=state_slots or 0,
        whole=0 if state_slots is None else _without_slots(tree, state_slots),
    )


def _without_slots(tree: PrefixTree, slots: int) -> int:
    """Prompts whose nodes have no slot each, beside those of a row and of a node that moves on."""
    found, stack = 0, [(node, 1) for node in tree.root_nodes]
    while stack:
        node, depth = stack.pop()
        found += len(node.requests) if 1 < depth > slots - 2 else 0
        stack += [(child, depth + 1) for child in node.children]
    return found


def shared_tokens(tree: PrefixTree, some: Sequence[bool], others: Sequence[bool]) -> int:
    """Count the tokens of the tree in nodes that both kinds of prompts have, by a flag for each
    prompt.
    """
    below: dict[int, tuple[bool, bool]] = {}
    tokens = 0
    for node in reversed(list(tree.nodes())):
        marks = [below[id(child)] for child in node.children]
        marks += [(some[index], others[index]) for index in node.requests]
        below[id(node)] = has_some, has_others = any(m[0] for m in marks), any(m[1] for m in marks)
        tokens += node.length if has_some and has_others else 0
    return tokens


def shared_lengths(tree: PrefixTree) -> dict[int, int]:
    """How many tokens of each prompt are in nodes that other prompts have, too."""
    below: dict[int, int] = {}
    for node in reversed(list(tree.nodes())):
        below[id(node)] = len(node.requests) + sum(below[id(child)] for child in node.children)
    shared: dict[int, int] = {}
    stack = [(node, 0) for node in tree.root_nodes]
    while stack:
        node, above = stack.pop()
        above += node.length if below[id(node)] > 1 else 0
        shared |= dict.fromkeys(node.requests, above)
        stack += [(child, above) for child in node.children]
    return shared


def most_blocks(
    tree: PrefixTree, samples: Each, max_tokens: Each, max_sequences: int, width: int = 1
) -> int:
    """KV blocks that a job can use at most: every node, and a full batch at its full length.

    A sequence may own two blocks more than it fills, which are assigned ahead. samples, max_tokens,
    width: as above.
    """
    size = tree.block_size
    nodes = sum(_blocks_of(node, size, width) for node in tree.nodes())
    prompts = sum(len(node.requests) for node in tree.nodes())
    counts, lengths = each_of(samples, prompts), each_of(max_tokens, prompts)
    blocks, left = 0, max_sequences
    for length, count in sorted(zip(lengths, counts, strict=True), reverse=True):  # longest first
        rows = min(count, left)
        blocks, left = blocks + rows * (math.ceil(length / size) + 2), left - rows
    return nodes + blocks


def _blocks_of(node: Node, block_size: int, width: int) -> int:
    return math.ceil(node.length / block_size) * (1 if node.alone else width)


def fitting_sequences(
    tree: PrefixTree,
    samples: Each,
    max_tokens: Each,
    num_blocks: int,
    width: int = 1,
    state_slots: int | None = None,
) -> int:
    """Sequences that fit together at their full length, taking the problems in order.

    samples, max_tokens, width, state_slots: as above. Every node and every sequence takes a slot.
    """
    size = tree.block_size
    prompts = sum(len(node.requests) for node in tree.nodes())
    counts = each_of(samples, prompts)
    suffixes = [math.ceil(length / size) for length in each_of(max_tokens, prompts)]
    free, fit = num_blocks, 0
    slots = len(list(tree.nodes())) + sum(counts) if state_slots is None else state_slots
    for node in tree.nodes():
        free -= _blocks_of(node, size, width)
        slots -= 1
        if min(free, slots) < 0:
            break
        is_full = False
        for place in node.requests:
            room = min(counts[place], free // suffixes[place], slots)
            free, fit = free - room * suffixes[place], fit + room
            slots -= room
            is_full = is_full or room < counts[place]
        if is_full:
            break
    least = min(
        math.ceil(leaf.end / size) * width + suffixes[place]
        for leaf in tree.nodes()
        for place in leaf.requests
    )
    return fit or int(least <= num_blocks)


def each_of(value: Each, count: int) -> Sequence[int]:
    """Return a value for each of so many problems."""
    return [value] * count if isinstance(value, int) else value


def _branches(tree: PrefixTree, ids: Sequence[str], counts: Sequence[int]) -> list[Branch]:
    """The tree to be shown: the middle of long lists of children, and deep levels, as one."""
    problems: dict[int, int] = {}
    samples: dict[int, int] = {}
    first: dict[int, int] = {}
    for node in reversed(list(tree.nodes())):
        below = sum(problems[id(child)] for child in node.children)
        problems[id(node)] = len(node.requests) + below
        own = sum(counts[place] for place in node.requests)
        samples[id(node)] = own + sum(samples[id(child)] for child in node.children)
        first[id(node)] = min([*node.requests, *(first[id(child)] for child in node.children)])

    def show(nodes: Sequence[Node], level: int) -> list[Branch]:
        nodes = sorted(nodes, key=lambda node: first[id(node)])
        if level > _SHOWN_LEVELS and any(node.children for node in nodes):
            return [fold(nodes)]
        if len(nodes) <= _SHOWN_FIRST + _SHOWN_LAST + 1:
            return [show_one(node, level) for node in nodes]
        return [
            *(show_one(node, level) for node in nodes[:_SHOWN_FIRST]),
            fold(nodes[_SHOWN_FIRST:-_SHOWN_LAST]),
            *(show_one(node, level) for node in nodes[-_SHOWN_LAST:]),
        ]

    def fold(nodes: Sequence[Node]) -> Branch:
        count = sum(problems[id(node)] for node in nodes)
        below = list(walk(nodes))
        tokens = sum(node.length for node in below)
        drawn = sum(samples[id(node)] for node in nodes)
        return Branch(tokens, count, drawn, repeat=len(below))

    def show_one(node: Node, level: int) -> Branch:
        count = problems[id(node)]
        problem = ids[node.requests[0]] if node.requests else None
        below = show(node.children, level + 1)
        return Branch(node.length, count, samples[id(node)], problem, 1, below)

    return show(tree.root_nodes, 1)
