"""Workers killed at random moments, and the samples to the bit all the same.

SHAREGEN_KILLS says how many there are; 200 take minutes.
"""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.model.load import load_model
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.messages import Setting
from sharegen.job.cut import cut
from tests.engine.parallel.forked import forked
from tests.tiny import save_tiny_model

KILLS = int(os.environ.get("SHAREGEN_KILLS", "20"))
BLOCK = 4
CONFIG = EngineConfig(max_sequences=16, kv_cache_memory=8 << 20, block_size=BLOCK)
PARAMS = SamplingParams(temperature=1.1, max_tokens=24, ignore_eos=True)

Found = dict[tuple[int, int], tuple[object, ...]]


def hard_to_deal() -> list[Request]:
    """Below one stem, branches by accident: less than a block, a block, and more, in two levels."""
    rng = random.Random(7)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, 300) for _ in range(count)]

    stem = tokens(21)
    middles = [tokens(length) for length in (1, BLOCK, BLOCK + 1, 3 * BLOCK + 1, 0)]
    inners = [tokens(length) for length in (2, BLOCK, 2 * BLOCK + 3, 0)]
    prompts = [
        [*stem, *rng.choice(middles), *rng.choice(inners), *tokens(rng.randint(1, 7))]
        for _ in range(40)
    ]
    tree = PrefixTree.build(prompts, BLOCK)
    splits = {i: node.splits() for node in tree.nodes() for i in node.requests}
    return [Request(i, p, PARAMS, range(4), splits=splits[i]) for i, p in enumerate(prompts)]


def results(completions: Sequence[Completion]) -> Found:
    """By key: tokens, text, and the very bits of the log-probability."""
    found: Found = {
        (c.request.key, c.sample): (c.token_ids, c.text, c.cumulative_logprob) for c in completions
    }
    assert len(found) == len(completions), "a sample was drawn twice"
    return found


def shards_of(requests: Sequence[Request], count: int) -> list[list[Request]]:
    """The requests as `--shard` cuts them."""
    prompts = [request.prompt_token_ids for request in requests]
    parts = cut(PrefixTree.build(prompts, BLOCK), 4 * PARAMS.max_tokens, count).parts
    return [[requests[i] for i in part.problems] for part in parts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), context=256)


@pytest.fixture(scope="module")
def setting(folder: Path) -> Setting:
    return Setting(str(folder), load_tokenizer(folder), CONFIG, device="cpu", threads=1)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Found:
    engine = Engine(load_model(folder, device="cpu"), load_tokenizer(folder), CONFIG)
    found = results(list(engine.generate(hard_to_deal())))
    engine.close()
    return found


def test_the_data_is_hard() -> None:
    """What the others rest on: from its own prompts alone, a part would split some elsewhere."""
    elsewhere = 0
    for part in shards_of(hard_to_deal(), 3):
        tree = PrefixTree.build([request.prompt_token_ids for request in part], BLOCK)
        splits = {i: node.splits() for node in tree.nodes() for i in node.requests}
        elsewhere += sum(splits[i] != request.splits for i, request in enumerate(part))
    assert elsewhere


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "shards"), [(1, 1), (2, 1), (3, 1), (2, 3)])
def test_any_number_of_workers_and_shards(
    setting: Setting, alone: Found, workers: int, shards: int
) -> None:
    driver = Driver([setting] * workers, forked())
    driver.gather()
    found: Found = {}
    for part in shards_of(hard_to_deal(), shards):
        found |= results(list(driver.generate(part)))
    driver.close()
    assert found == alone


@pytest.mark.slow
def test_killed_at_random_moments(setting: Setting, alone: Found) -> None:
    """Of two or three workers that draw or start, whole jobs and shards; each gets a successor."""
    rng = random.Random(KILLS)
    kills = 0
    while kills < KILLS:
        driver = Driver([setting] * rng.choice([2, 3]), forked())
        found: Found = {}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for part in shards_of(hard_to_deal(), rng.choice([1, 2])):
                completions = []
                due = time.monotonic() + rng.uniform(0, 0.3)
                for completion in driver.generate(part):
                    completions.append(completion)
                    if kills < KILLS and time.monotonic() > due and len(driver.pids) > 1:
                        os.kill(rng.choice(driver.pids), signal.SIGKILL)
                        driver.start_worker(setting)
                        kills += 1
                        due = time.monotonic() + rng.uniform(0, 0.3)
                found |= results(completions)
        driver.close()
        assert found == alone
        assert all("it was killed" in str(warning.message) for warning in told)
