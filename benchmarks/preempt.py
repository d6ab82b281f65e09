"""`python -m benchmarks preempt`: what it costs to take a sample's blocks and give them back later.

PagedAttention's comparison (Kwon et al., SOSP 2023, section 7.3 and figure 19): for each block size
and length a sample's KV is swapped out to host memory and in again, or computed again. There are
two ways to do that: in one prefill pass, or by feeding the tokens again, one a step, in a row
beside others, which is what keeps the very bits of a CPU in float32.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.graphs import ready_for
from sharegen.bench.engines import give_memory_back
from sharegen.bench.shapes import random_model
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.batch import Swaps
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.execute.kv_cache import block_format
from sharegen.engine.execute.swap_space import SwapSpace
from sharegen.engine.model.checkpoint.source import resolve_device
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.opening import open_engine
from sharegen.errors import UsageError

BLOCK_SIZES = (1, 4, 16, 64, 256)
LENGTHS = (64, 256, 1024)
PROMPT = 32  # tokens before those that are fed again


@dataclass(frozen=True)
class Costs:
    """The milliseconds that a sample takes, of `tokens` tokens in blocks of `block_size`.

    swap_out_ms, swap_in_ms: until the copies are done, though steps go on beside them on a GPU.
    one_pass_ms: a prefill batch of its own. replay_ms: its share of steps of `rows` rows in which
    it feeds one token each.
    """

    block_size: int
    tokens: int
    swap_out_ms: float
    swap_in_ms: float
    one_pass_ms: float
    replay_ms: float

    @property
    def cheapest(self) -> str:
        """The cheapest of both copies together and the two ways to compute it again."""
        ways = {
            "swap": self.swap_out_ms + self.swap_in_ms,
            "one pass": self.one_pass_ms,
            "replay": self.replay_ms,
        }
        return min(ways, key=lambda way: ways[way])


def bench_preempt(
    shape: str,
    *,
    block_sizes: Sequence[int] = BLOCK_SIZES,
    lengths: Sequence[int] = LENGTHS,
    rows: int = 64,
    repeats: int = 5,
    device: str = "cuda",
    dtype: str = "bfloat16",
    compile_model: bool = True,
) -> dict[str, Any]:
    """The costs by block size and length; prints a table to stderr.

    shape: a known shape or a model folder (its config; weights are random). rows: sequences that
    decode together where tokens are fed again. repeats: of each measurement; the median counts.
    Raises UsageError for a model that keeps states, or whose context is shorter than the lengths.
    """
    loaded = load_model(random_model(shape, resolve_device(device), getattr(torch, dtype)))
    check(loaded, shape, lengths)
    print(f"{'block':>6} {'tokens':>7} {'swap out':>10} {'swap in':>10} {'one pass':>10} "
          f"{'replay':>10}  cheapest  (ms)", file=sys.stderr)  # fmt: skip
    found: list[Costs] = []
    for costs in measure(
        loaded, block_sizes, lengths, rows=rows, repeats=repeats, compile_model=compile_model
    ):
        found.append(costs)
        numbers = (costs.swap_out_ms, costs.swap_in_ms, costs.one_pass_ms, costs.replay_ms)
        print(f"{costs.block_size:>6} {costs.tokens:>7,} "
              + " ".join(f"{n:>10.3f}" for n in numbers)
              + f"  {costs.cheapest}", file=sys.stderr)  # fmt: skip
    return {
        "bench": "preempt", "shape": shape, "device": str(loaded.device), "dtype": dtype,
        "rows": rows, "kv_bytes_per_token": token_bytes(loaded),
        "costs": [asdict(costs) | {"cheapest": costs.cheapest} for costs in found],
    }  # fmt: skip


def check(loaded: LoadedModel, shape: str, lengths: Sequence[int], reach: int = 1) -> None:
    """Raise UsageError for a model that cannot be measured so.

    reach: how many times as long as a length says the longest sample is.
    """
    if loaded.mixers:
        raise UsageError(f"{shape}: a model with recurrent states is never swapped")
    most = (loaded.context_length - PROMPT - 1) // reach
    if max(lengths) > most:
        raise UsageError(
            f"{shape} holds {loaded.context_length:,} tokens of context: lengths may be up to "
            f"{most:,}"
        )


def measure(
    loaded: LoadedModel,
    block_sizes: Sequence[int],
    lengths: Sequence[int],
    *,
    rows: int,
    repeats: int,
    compile_model: bool = True,
) -> Iterator[Costs]:
    """The costs of each block size and length, one after the other; as `bench_preempt`."""
    for block_size in block_sizes:
        measured = _Measured(loaded, block_size, rows, max(lengths), repeats, compile_model)
        for tokens in lengths:
            yield measured.costs(tokens)
        measured.close()


class _Measured:
    """One engine with blocks of one size, and host memory beside it for a sample."""

    def __init__(
        self,
        loaded: LoadedModel,
        block_size: int,
        rows: int,
        longest: int,
        repeats: int,
        compile_model: bool,
    ) -> None:
        blocks = -(-PROMPT // block_size) + (rows + 1) * (-(-longest // block_size) + 1)
        config = EngineConfig(
            max_sequences=rows,
            block_size=block_size,
            kv_cache_memory=blocks * block_size * token_bytes(loaded),
            compile=compile_model,
            swap_space=0,
        )
        self._engine = open_engine(Setting(loaded, None, config))
        self._block_size, self._rows, self._longest = block_size, rows, longest
        self._repeats = repeats
        self._space = SwapSpace(self._engine.runner.cache, -(-longest // block_size))
        self._rng = random.Random(0)
        self._step_ms = 0.0

    def close(self) -> None:
        del self._engine, self._space
        give_memory_back()

    def costs(self, tokens: int) -> Costs:
        count = -(-tokens // self._block_size)
        blocks = self._rng.sample(range(self._engine.pool.num_blocks), count)
        pairs = np.array(list(zip(blocks, range(count), strict=True)), dtype=np.int64)
        none = np.empty((0, 2), dtype=np.int64)
        self._step_ms = self._step_ms or self._milliseconds_of_step()
        return Costs(
            self._block_size,
            tokens,
            self._median(lambda: self._swap(Swaps(pairs, none))),
            self._median(lambda: self._swap(Swaps(none, pairs[:, ::-1]))),
            self._median(lambda: self._generate(self._tokens(tokens), 1, 1)),
            tokens * self._step_ms / self._rows,
        )

    def _swap(self, swaps: Swaps) -> None:
        self._space.begin(swaps)
        self._space.finish()

    def _milliseconds_of_step(self) -> float:
        """Time a step of all rows, over as many tokens as the longest sample has."""
        prompt, stats = self._tokens(PROMPT), self._engine.stats
        ready_for(self._engine, self._longest + 1)
        self._generate(prompt, self._rows, 4)  # compiles, and captures graphs
        steps, seconds = stats.decode_steps, stats.decode_seconds
        self._generate(prompt, self._rows, self._longest + 1)
        return 1e3 * (stats.decode_seconds - seconds) / (stats.decode_steps - steps)

    def _tokens(self, count: int) -> list[int]:
        size = self._engine.model.vocab_size
        return [self._rng.randrange(size) for _ in range(count)]

    def _generate(self, prompt: list[int], samples: int, tokens: int) -> None:
        params = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True)
        self._engine.reset_prefix_cache()
        for _ in self._engine.generate([Request(0, prompt, params, range(samples))]):
            pass

    def _median(self, do: Callable[[], None]) -> float:
        """Return the median of milliseconds, after a first run, which compiles and touches
        memory.
        """
        do()
        times = []
        for _ in range(self._repeats):
            begin = time.perf_counter()
            do()
            times.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(times)


def token_bytes(loaded: LoadedModel) -> int:
    """Return the bytes of a token's keys and values in all layers."""
    return block_format(loaded.layers, loaded.dtype, "auto").token_bytes
