"""A deterministic scheduler: where prompts are cut, and how rows read the tree, is the job's alone.

Whatever the sizes of pool and batches, the order of arrival, preemption and steps taken back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.core.batch import DecodeBatch, PrefillBatch
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.loop import starting
from sharegen.engine.schedule import scheduler
from sharegen.engine.schedule.scheduler import Scheduler
from tests.engine.jobs import CheckedEngine, forest, hope_for_the_best, loaded, make_engine, run
from tests.engine.spelling import SpellingRunner

CHUNK = 8
Known = dict[tuple[str, int], object]
"""How something was computed that has a name."""


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """The scheduler that an engine on a GPU has in this mode, with chunks of few tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            starting,
            "Scheduler",
            lambda *args, **how: Scheduler(
                *args, **(how | {"deterministic": True, "cut_tokens": CHUNK})
            ),
        )
        patch.setattr(scheduler, "LEAST_CHUNK", CHUNK)
        yield


class Recorder(SpellingRunner):
    """Notes how tokens and samples are computed, and asserts that it is always in the same way."""

    def __init__(self, engine: CheckedEngine, requests: list[Request], known: Known) -> None:
        super().__init__(engine, requests)
        self.known = known
        self.failing: dict[str, int] = {}  # how often each kind of step is still to find no memory

    def prefill(self, batch: PrefillBatch) -> Drawn:
        drawn = super().prefill(batch)
        self._fail("prefill")
        layout = batch.layout
        for first, end in pairwise(batch.chunk_starts):
            last = int(self.keys[batch.slots[end - 1]])
            rows = [layout.order.tolist().index(row) for row in (first, end - 1)]
            nodes = [
                (int(layout.position[i]), int(layout.length[i]))
                for i in range(layout.num_nodes)
                if layout.row_start[i] <= rows[0] and rows[1] < layout.row_end[i]
            ]
            self._note(("chunk that ends with", last), (int(batch.positions[first]), nodes))
        return drawn

    def decode(self, batch: DecodeBatch) -> Drawn:
        drawn = super().decode(batch)
        self._fail("decode")
        layout = self.layout
        assert layout is not None and layout.alone is not None
        for place, row in enumerate(layout.order.tolist()):
            nodes = [
                (int(layout.position[i]), int(layout.length[i]), bool(layout.alone[i]))
                for i in range(layout.num_nodes)
                if layout.row_start[i] <= place < layout.row_end[i]
            ]
            drawing = self.who[row]
            assert drawing is not None
            self._note(("sample of", drawing.key), sorted(nodes))
        return drawn

    def _note(self, name: tuple[str, int], fact: object) -> None:
        assert self.known.setdefault(name, fact) == fact, name

    def _fail(self, kind: str) -> None:
        if self.failing.get(kind, 0):
            self.failing[kind] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def draw(requests: list[Request], known: Known, seed: int, **config: int) -> CheckedEngine:
    engine = make_engine(loaded("llama"), **config)
    engine.runner = recorder = Recorder(engine, requests, known)  # type: ignore[assignment]
    engine._lag = seed % 2
    if (config.get("max_sequences"), config.get("prefill_tokens")) == (64, 100):
        recorder.failing = {"prefill": 1, "decode": 1}
    hope_for_the_best(engine)
    order = list(requests)
    random.Random(seed).shuffle(order)
    run(engine, order)
    return engine


@pytest.mark.turn(3)
@pytest.mark.filterwarnings("ignore:out of memory")
@given(st.integers(0, 1000), st.data())
@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_cuts_and_nodes_are_those_of_the_job(seed: int, data: st.DataObject) -> None:
    rng = random.Random(seed)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    requests = [
        Request(i, prompt, params, range(rng.choice([1, 1, 2, 5])))
        for i, prompt in enumerate(forest(seed % 4))
    ]
    known: Known = {}
    for turn in range(3):
        draw(
            requests, known, seed + turn,
            blocks=data.draw(st.sampled_from([40, 60, 400])),
            max_sequences=data.draw(st.sampled_from([2, 8, 64])),
            prefill_tokens=data.draw(st.sampled_from([3, 16, 24, 100])),
            host_blocks=data.draw(st.sampled_from([0, 20])),
        )  # fmt: skip
    assert sum(kind.startswith("chunk") for kind, _ in known) > len(requests)


@pytest.mark.turn(2)
def test_samples_that_are_added_later_read_the_tree_as_those_before() -> None:
    """As a command's requests say it, whose prompts may always get more samples."""
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    prompts = forest()
    leaves = PrefixTree(4).insert(prompts)
    known: Known = {}
    for samples in (range(1), range(5)):
        requests = [
            Request(i, prompt, params, samples, splits=leaf.splits(), alone=0)
            for i, (prompt, leaf) in enumerate(zip(prompts, leaves, strict=True))
        ]
        draw(requests, known, 1, max_sequences=8)
    of_samples = [fact for (kind, _), fact in known.items() if kind == "sample of"]
    assert len(of_samples) == 5 * len(prompts)
    assert not any(alone for nodes in of_samples for _, _, alone in nodes)  # type: ignore[attr-defined]


@pytest.mark.turn(4)
def test_a_preempted_sample_never_gets_its_tokens_in_one_pass() -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    requests = [Request(i, prompt, params, range(4)) for i, prompt in enumerate(forest())]
    engine = draw(requests, {}, 1, blocks=60)
    swapping = engine.scheduler.swapping
    assert engine.stats.preemptions and swapping.one_pass == swapping.tokens_filled == 0
