"""The half of an engine that lies on the device: a model made fast, its KV cache, its runners.

It is handed batches, which are data, and knows no request.
"""

from __future__ import annotations

import gc
import importlib.util
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sharegen.common.start_clock import COMPILING, START, WARMING_UP
from sharegen.engine.config import MAX_SEQUENCES, EngineConfig
from sharegen.engine.core.batch import FIXED_CHUNK_ON_CPU, Batch
from sharegen.engine.execute.agreement import Agreement
from sharegen.engine.execute.attention import attention_for
from sharegen.engine.execute.determinism import MOST_THREADS, check_any_tree, check_deterministic
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.execute.graphs import StepGraphs
from sharegen.engine.execute.headroom import free_memory, kv_cache_memory, memory_again
from sharegen.engine.execute.kv_cache import KVCache, block_format, check_kv_cache_dtype
from sharegen.engine.execute.memory import blocks_in, slots_in
from sharegen.engine.execute.padding import (
    all_sizes,
    graph_rows,
    padded_rows,
    steady_chunk,
    steady_rows,
)
from sharegen.engine.execute.process import best_threads
from sharegen.engine.execute.room import Room
from sharegen.engine.execute.runner import Runner
from sharegen.engine.execute.state_kernels import step_kernels
from sharegen.engine.execute.states import StatePool
from sharegen.engine.execute.swap_space import SwapSpace, open_swap_space
from sharegen.engine.model.compile.kept_code import keep_compiled_code
from sharegen.engine.model.compile.wanted_rows import skip_unwanted_rows
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.states.first_forms import keep_first_forms
from sharegen.engine.model.steady.holding import hold_products
from sharegen.engine.model.steady.telling import not_steady
from sharegen.engine.model.steady.trial import USUAL_ROWS
from sharegen.engine.model.summary import Optimised, has_grouped_experts, summary
from sharegen.engine.model.tensor_parallel.ranks import alone
from sharegen.kernels.cost import CostModel

_MOST_BLOCKS_OF_IDS = 1 << 20  # without attention, where a token takes next to no memory


@dataclass(frozen=True)
class Start:
    """All ranks begin anew, with a runner of these costs.

    checked: whether they compare every step with each other.
    """

    costs: CostModel | None
    checked: bool


class OtherRanks(Protocol):
    """The other tensor-parallel ranks of a model; see parallel/tensor_parallel_workers.py."""

    def broadcast(self, record: Start | Batch) -> None:
        """Say what all ranks do next, this one included."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Stand around what all ranks do: where one is gone, the error says so."""
        ...

    def wait(self, drawn: Drawn) -> None:
        """Wait until it is drawn, or a rank is gone."""
        ...

    def settle(self) -> None:
        """Wait until this rank's device is idle, before anything on it is freed."""
        ...

    def close(self) -> None:
        """Let them leave. Nothing of the engine is on this rank's device any more."""
        ...

    def end(self) -> None:
        """End them at once, and whatever this rank's device waits for."""
        ...


class Prepared:
    """A model compiled where it may be, beside as much KV cache as there is room for.

    Where a model has several ranks, each size is the least that any of them has room for.

    Args:
        model: as `load_model` returns it; its layers are compiled here.
        tokenizer: passed on to runners, for rules about text.
        config: sizes and options, of which None says: choose.

    Attributes:
        max_sequences: sequences that decode together; a batch of n is run with padded(n) rows.
        chunk_tokens: tokens of a prefill batch.
        blocks: what the blocks of the KV cache are.
        cache: the KV cache of `num_blocks` blocks.
        place_bytes: bytes of one token's place in a block, on all ranks together.
        states: the pool of `num_slots` states, where the model keeps any, else None.
        swap_space: host memory for the blocks of preempted sequences, or None.
        swap_seconds: seconds that a swap takes: a fixed part, and one for each block.
        threads: torch's threads in every step.

    Raises:
        CapacityError: there is not as much memory as is asked for.
        UsageError: an option does not fit the device.
    """

    @START.part(WARMING_UP)
    def __init__(self, model: LoadedModel, tokenizer: Any | None, config: EngineConfig) -> None:
        self.model = model
        self.tokenizer = tokenizer
        on_gpu = model.device.type == "cuda"
        self._config = config
        of_gpu = steady_rows if config.deterministic else graph_rows
        self.padded = of_gpu if on_gpu else padded_rows
        self.max_sequences = config.max_sequences or MAX_SEQUENCES[model.device.type]
        self.chunk_tokens = config.prefill_tokens or (8192 if on_gpu else 512)
        if config.deterministic and on_gpu:
            self.chunk_tokens = steady_chunk(self.chunk_tokens)
        elif config.deterministic:
            self.chunk_tokens = max(self.chunk_tokens, FIXED_CHUNK_ON_CPU)
        check_kv_cache_dtype(config.kv_cache_dtype, model.device)
        if config.any_tree:
            check_any_tree(model, config.deterministic)
        if config.deterministic:
            check_deterministic(model)
            if model.ranks is not None:
                model.ranks.sum_in_order()
        blocks = block_format(
            model.layers, model.dtype, config.kv_cache_dtype, why_no_latents(model, config) is None
        )
        with model.changing():
            most = max(self.max_sequences, self.chunk_tokens, USUAL_ROWS)
            held = all_sizes(self.padded, most) if config.deterministic and on_gpu else ()
            if held and model.mixers:
                model.on_release(keep_first_forms())
            optimised = _made_fast(model, config, held)
            optimised.left += left_beside(model, config)
            said = summary(model, optimised) if config.show_model else ()
            if held:
                with alone():  # products are tried now, not when memory is measured
                    model.trial_forward(2, 2)
            told = list(not_steady(model, held)) if held else ()
        for line in said:
            warnings.warn(line, stacklevel=3)
        if told:
            warnings.warn(
                "deterministic: a row's bits may depend on the other rows in "
                f"{'; '.join(told)}: samples may differ between two runs",
                stacklevel=3,
            )
        self.blocks = blocks
        self._memory, self._steps = kv_cache_memory(
            model,
            self.padded(self.max_sequences),
            self.chunk_tokens,
            config.block_size,
            blocks_per_full=blocks.blocks_per_full,
            latents=blocks.latents,
            asked=config.kv_cache_memory,
            limit=config.kv_cache_limit,
            share=config.gpu_memory_utilization,
        )
        self.num_slots: int | None
        self.states: StatePool | None
        self.swap_space: SwapSpace | None
        self._told = self._memory
        self._free = free_memory(model.device)
        self._take_memory(self._memory)
        self.threads = _threads(model, self.max_sequences)
        if config.deterministic and not on_gpu:
            self.threads = min(self.threads, MOST_THREADS)
        has_graphs = on_gpu and not config.enforce_eager
        self._room = None if model.ranks is None else Room(model.ranks, self._steps)
        self._graphs = StepGraphs(model.ranks, self._room) if has_graphs else None

    def give_memory_back(self) -> None:
        """Free cache, states, swap space and graphs, once the last runner is gone."""
        if self._graphs is not None:
            self._graphs.clear()
        del self.cache
        self.states = self.swap_space = None
        gc.collect()  # what was captured may lie in circles
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def take_memory_again(self) -> None:
        """Take what was given back, or as much less as others have taken of the device since.

        Raises CapacityError where they have left too little.
        """
        memory = memory_again(self.model.device, self._memory, self._free, self._steps)
        if memory < 0.99 * self._told:
            self._told = memory
            warnings.warn(
                f"the KV cache takes {memory / 2**30:.2f} GiB, where it had "
                f"{self._memory / 2**30:.2f}: others have taken more of the GPU since",
                stacklevel=5,
            )
        self._take_memory(memory)

    def _take_memory(self, memory: int) -> None:
        """Make the cache, the pool of states and the swap space, of so many bytes on the device."""
        model, config, blocks = self.model, self._config, self.blocks
        self.num_slots, self.states = None, None
        if model.mixers:
            self.num_slots = config.state_slots or slots_in(
                memory, model.state_bytes, self.max_sequences, bool(model.layers)
            )
            kernels = step_kernels(model.device)
            self.states = StatePool(
                model.mixers, self.num_slots, model.device, kernels, model.dtype
            )
            memory -= self.num_slots * model.state_bytes
        full_blocks = blocks_in(memory, blocks.shared_token_bytes * config.block_size)
        full_blocks = full_blocks if model.ranks is None else model.ranks.least(full_blocks)
        full_blocks = full_blocks if model.layers else min(full_blocks, _MOST_BLOCKS_OF_IDS)
        self.num_blocks = full_blocks * blocks.blocks_per_full
        self.place_bytes = blocks.token_bytes * (1 if model.ranks is None else model.ranks.size)
        self.cache = KVCache(
            model.layers, self.num_blocks, config.block_size, model.dtype, model.device,
            blocks.blocks_per_full, blocks.latents,
        )  # fmt: skip
        # What a hybrid's sample has is not in its blocks alone: it feeds its tokens again, to bring
        # the states of its mixers to where they were.
        self.swap_space = None
        if config.swap_space and model.mixers:
            warnings.warn(
                "swap_space: the model keeps states beside its KV, so preempted samples compute "
                "both again",
                stacklevel=3,
            )
        elif config.swap_space:
            self.swap_space = open_swap_space(
                self.cache, self.num_blocks, config.swap_space, model.ranks
            )
        self.swap_seconds = self.swap_space.seconds() if self.swap_space is not None else (0.0, 0.0)

    def runner(self, start: Start) -> Runner:
        """Make a runner for which nothing has run; the one before must be let go of first."""
        if self._graphs is not None:
            self._graphs.clear()
        ranks = self.model.ranks
        rows = self.padded(self.max_sequences)
        attention = attention_for(
            self.model.layers, self.cache, rows, self.chunk_tokens, start.costs,
            self._config.deterministic, self._config.arriving, self._config.any_tree,
        )  # fmt: skip
        return Runner(
            self.model,
            self.cache,
            attention,
            max_sequences=self.max_sequences,
            padded=self.padded,
            tokenizer=self.tokenizer,
            graphs=None if attention.fallback else self._graphs,
            room=self._room,
            agreement=Agreement(ranks) if ranks is not None and start.checked else None,
            states=self.states,
            swap_space=self.swap_space,
            processed_logprobs=self._config.logprobs_mode == "processed_logprobs",
            arriving=self._config.arriving,
        )


def _made_fast(model: LoadedModel, config: EngineConfig, steady_rows: Sequence[int]) -> Optimised:
    """Fuse and compile what a GPU is to run, and leave out rows that nobody wants.

    steady_rows: the numbers of rows with which a row's bits are to be the same; none where they may
    differ.
    """
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        keep_compiled_code(torch.cuda.get_device_name(model.device))
    if on_gpu and config.compiles and not config.enforce_eager:
        # Here, for with it comes torch's compiler: a second, and for GPUs alone.
        with START.part(COMPILING):
            from sharegen.engine.model.compile.compiling import optimise

            return optimise(model, steady_rows)
    skip_unwanted_rows(model)
    if steady_rows:
        hold_products(model, steady_rows)
    why = "compiling is turned off" if on_gpu else "a CPU runs the model's own code"
    return Optimised(left=[f"the whole model: {why}"])


def why_no_latents(model: LoadedModel, config: EngineConfig) -> str | None:
    """Why what reads the KV cache cannot read latents; None where it can, as on any CPU.

    On a GPU only the kernels do, as fast as they do, and not in an order that no batch changes.
    """
    if model.device.type != "cuda":
        return None
    if config.deterministic:
        return "their kernel has no order that is the same in every batch"
    if importlib.util.find_spec("triton") is None:
        return "their kernel needs Triton"
    from sharegen.engine.execute.kernel_latents import unsupported

    return unsupported(model.layers, model.dtype, model.device)


def left_beside(model: LoadedModel, config: EngineConfig) -> list[str]:
    """What `--show-model` says was not made fast, beside what was not compiled."""
    left = []
    reason = why_no_latents(model, config)
    if reason is not None and any(layer.latent is not None for layer in model.layers):
        left.append(f"latents, which are spread out: {reason}")
    on_gpu, dtype = model.device.type == "cuda", str(model.dtype).removeprefix("torch.")
    if on_gpu and has_grouped_experts(model.model) and model.dtype != torch.bfloat16:
        left.append(f"experts: torch multiplies them in {dtype} with the host's help, so that no "
                    "step is a CUDA graph, as it is in bfloat16")  # fmt: skip
    return left


def _threads(model: LoadedModel, rows: int) -> int:
    """Choose torch's threads for a step; ranks get equal numbers, which no rank times by itself."""
    threads = torch.get_num_threads()
    if model.ranks is not None:
        return max(1, threads // model.ranks.size)
    return threads if model.device.type == "cuda" else best_threads(model, rows)
