"""The engine: requests in, completions out, as they finish.

`step` reads as the whole system: schedule, run, collect.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch

from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.cache.paths import Paths
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.cache.state_slots import StateSlots
from sharegen.engine.collecting import Collector
from sharegen.engine.config import EngineConfig, EngineStats
from sharegen.engine.execute.agreement import asked
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.execute.memory import is_out_of_memory, rank_out_of_memory
from sharegen.engine.execute.process import short_collections, uninterrupted, using
from sharegen.engine.execute.room import TakenBack
from sharegen.engine.grammar.grammars import Grammars
from sharegen.engine.lengths import Lengths
from sharegen.engine.masking import masked
from sharegen.engine.model.loaded import LoadedModel, on
from sharegen.engine.model.mixers import TORCH_CODE, kernels_of
from sharegen.engine.prepared import Others, Prepared, Start
from sharegen.engine.random_key import row_key
from sharegen.engine.request import Completion, Request, SamplingParams
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.step import DecodeStep, PrefillStep, Step
from sharegen.engine.schedule.swapping import SwapCost
from sharegen.engine.schedule.usage import Meter, Usage
from sharegen.errors import CapacityError, RequestError, SharegenError, UsageError
from sharegen.kernels.cost import CostModel, Decided, load_costs

# Of the tree: kernels differ where nodes are shared, where they are read apart, where both are.
_READINGS = (Decided(every=0), Decided(every=1), Decided(every=2))


class Engine:
    """One model, its KV cache, and the loop that keeps them busy.

    tree: an empty one, which says what prompts store once; costs: what decides which of its nodes
    a GPU reads once for all rows, by default all that is worth it; with EACH_ROW none, on a CPU
    neither. others: the other ranks, where the model is this rank's part of one.
    """

    def __init__(
        self,
        model: LoadedModel,
        tokenizer: Any | None,
        config: EngineConfig | None = None,
        *,
        tree: PrefixTree | None = None,
        costs: CostModel | None = None,
        others: Others | None = None,
    ) -> None:
        assert (others is None) == (model.ranks is None)
        self.config = config or EngineConfig()
        length = self.config.max_model_len
        self.model = model if length is None else model.within(length)
        self.tokenizer = tokenizer
        # On a GPU the host works one step behind: it reads a step's tokens while the next one runs.
        self._lag = 1 if model.device.type == "cuda" else 0
        self._in_flight: deque[tuple[Step, Drawn]] = deque()
        self._tree = tree
        self._others = others
        self._paths = Paths(self.config.block_size)
        self._busy = False
        self._whole = True  # nothing was interrupted half-way in this job
        self._closed = False
        self._said_full = False
        self._forks: dict[int, int] = {}  # by request key: forked samples of this job
        self._cancelled: set[tuple[int, int]] = set()  # request keys and samples of this job
        self._grammars = Grammars(tokenizer, model.eos_token_ids, model.vocab_size)
        with on(model.device):
            self._prepare(costs)

    def _prepare(self, costs: CostModel | None) -> None:
        """Make the device ready, and on a GPU run small jobs in every reading there is."""
        prepared = Prepared(self.model, self.tokenizer, self.config)
        self.threads = prepared.threads
        if costs is None and self.model.device.type == "cuda":
            costs = load_costs(torch.cuda.get_device_name(self.model.device))
        for reading in _READINGS if self.model.device.type == "cuda" else ():
            self._start(prepared, reading)
            if self.stats.slow_attention is None:
                self._warm_up()
            del self.runner  # its buffers, before there are others
        self._start(prepared, costs)
        if self.stats.slow_attention is not None:
            warnings.warn(
                "plain torch does all attention, slowly and without CUDA graphs, for want of a "
                f"kernel: {self.stats.slow_attention}",
                stacklevel=3,
            )
        if self.stats.mixers == TORCH_CODE and self.model.device.type == "cuda":
            warnings.warn(
                f"the model's mixers run in {TORCH_CODE}, which is slow: pip install "
                "'sharegen[hybrid]' for kernels",
                stacklevel=3,
            )

    def _start(self, prepared: Prepared, costs: CostModel | None) -> None:
        """Everything that a job changes, as it is before the first one."""
        on_gpu = self.model.device.type == "cuda"
        cache = prepared.cache
        is_plain = cache.width == 1 and not self.model.mixers
        self.pool = BlockPool(prepared.num_blocks, self.config.block_size, cache.width)
        self.scheduler = Scheduler(
            self.pool,
            max_sequences=prepared.max_sequences,
            context_length=self.model.context_length,
            chunk_tokens=prepared.chunk_tokens,
            ahead_tokens=2048 if on_gpu else 0,
            padded=prepared.padded,
            scratch_block=cache.scratch_block,
            seed=self.config.seed,
            tree=self._tree,
            states=StateSlots(prepared.num_slots),
            mix_together=on_gpu,
            host_slots=0 if prepared.swap_space is None else prepared.swap_space.num_slots,
            swap_cost=SwapCost(*prepared.swap_seconds),
            # Prefill rounds otherwise than decoding does: on a CPU in float32 bits would differ.
            # And it reads what it puts into FP8 blocks as it was before that.
            one_pass=prepared.chunk_tokens if on_gpu and is_plain else 0,
        )
        start = Start(costs, checked=asked())
        if self._others is not None:
            self._others.tell(start)
        self.runner = prepared.runner(start)
        slow = self.runner.attention.fallback
        self.stats = EngineStats(
            blocks_total=prepared.num_blocks, slots=prepared.max_sequences, slow_attention=slow,
            states_total=prepared.num_slots or 0, mixers=kernels_of(self.model.mixers),
        )  # fmt: skip
        self.meter = Meter()
        self._place_bytes = prepared.place_bytes
        self.collector = Collector(
            self.scheduler, self.stats, self.tokenizer, self.model.eos_token_ids
        )

    def _warm_up(self) -> None:
        """Run small jobs of full and of few rows: no kernel is compiled during a real one."""
        size = 4 * self.config.block_size
        params = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True)
        try:
            for rows in (self.scheduler.max_sequences, 2):
                samples = range(max(1, rows // 2))
                requests = [Request(i, [0] * size + [i] * size, params, samples) for i in (1, 2)]
                for _ in self.generate(requests):
                    pass
                self.reset_prefix_cache()
        except SharegenError:
            pass  # too little memory or context for it: a real job will say so

    def close(self) -> None:
        """Free the KV cache and release the model; a job that runs ends with UsageError."""
        if self._closed:
            return
        self._closed = True
        if self._others is not None:
            self._others.settle()
        self.model.release()
        del self.runner  # with the cache's tensors and the CUDA graphs
        if self._others is not None:
            self._others.close()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()  # so that the next one finds the memory free

    def check(self, *requests: Request) -> None:
        """Raise RequestError or CapacityError, in one line, for requests that can never run.

        Such is one that might outgrow RoPE frequencies which change with the length, too.
        """
        for request in requests:
            error = self._error(request)
            if error is not None:
                raise error

    def errors(self, requests: Sequence[Request]) -> list[SharegenError | None]:
        """For each request what `check` raises, or None."""
        return [self._error(request) for request in requests]

    def _error(self, request: Request) -> SharegenError | None:
        try:
            self._check(request)
        except (RequestError, CapacityError) as error:
            error.request_key = request.key
            return error
        return None

    def _check(self, request: Request) -> None:
        params = request.params
        self.model.check_prompt(request.prompt_token_ids, params.max_tokens)
        if params.stop and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and none is loaded")
        if request.rows > self.model.vocab_size:
            raise RequestError(
                f"beam_width is {request.rows}, but the model's vocabulary has "
                f"{self.model.vocab_size} tokens to begin a text with: follow fewer beams"
            )
        self.runner.state.check(params)
        self._grammars.check(request)
        self.scheduler.check(request)

    def generate(
        self,
        requests: Iterable[Request],
        *,
        seed: int | None = None,
        lengths: Lengths | None = None,
    ) -> Generator[Completion, None, None]:
        """Draw all samples of all requests; completions come as they finish, in any order.

        Requests are read as they are needed. Closing the iterator early drops what is unfinished.
        seed: of requests and forks whose params bring none; the config's by default. lengths: of
        samples of the same job that were drawn earlier.
        """
        source = iter(requests)
        self.begin(seed, lengths)
        try:
            self._fill(source)
            with short_collections():
                while self.has_work:
                    yield from self.step()
                    if 2 * len(self.scheduler.prefill.waiting) <= self.config.lookahead:
                        self._fill(source)
        finally:
            self.end()

    # -- a job by hand: begin, then add and step as one likes, end ------------------------------

    def begin(self, seed: int | None = None, lengths: Lengths | None = None) -> None:
        """Start a job; `generate` does it all. seed, lengths: as there."""
        if self._closed:
            raise UsageError("the engine is closed: make a new one")
        if self._busy:
            raise UsageError("an engine does one job at a time: finish or close the first one")
        self.scheduler.seed = self.config.seed if seed is None else seed
        if lengths is not None:
            self.scheduler.admission.lengths.learn(lengths)
        self._busy = self._whole = True

    @contextmanager
    def _doing(self) -> Iterator[None]:
        """Around what must not stop in the middle; where it did, the job's end forgets all."""
        was, self._whole = self._whole, False
        yield
        self._whole = was

    def add(self, requests: Sequence[Request]) -> None:
        """Put requests that were checked to the job; their sharing is looked for together."""
        for request in requests:
            asked = len(request.prompt_token_ids) * len(request.samples)
            self.stats.prompt_tokens_asked += asked
        with self._doing():
            splits = None
            if self._tree is None and requests and requests[0].splits is None:
                splits = self._paths.splits([request.prompt_token_ids for request in requests])
            self.scheduler.add(requests, splits)

    @property
    def slots(self) -> int:
        """Samples that decode together."""
        return self.scheduler.max_sequences

    @property
    def has_work(self) -> bool:
        """Whether something of the job is not finished."""
        return self.scheduler.has_work or bool(self._in_flight)

    def step(self) -> list[Completion]:
        """Schedule a step, run it, and collect what is due.

        What is due is the lag: with a step just launched, the host leaves the last ones running.
        """
        if self._closed:
            raise UsageError("the model was closed while a job ran")
        if self._others is None:
            with self._doing():
                return self._step()
        with uninterrupted():  # the other ranks would wait for the rest of the step
            try:
                with self._others.together(), self._doing():
                    return self._step()
            except BaseException:  # a step that some ranks have done, and some not, is the last
                self._others.end()
                self.close()
                raise

    def _step(self) -> list[Completion]:
        with using(self.threads), on(self.model.device):
            finished = self._collect(leave=0) if self.scheduler.wants_rest else []
            step = self.scheduler.schedule(at_rest=not self._in_flight)
            started = time.perf_counter()
            if step is not None:
                step = masked(step, self._grammars)
            if step is None:
                finished += self._collect(leave=0)
            elif self._run(step):
                usage = Usage.of(self.scheduler.cache, self.scheduler.rows)
                self.meter.note(usage, decodes=isinstance(step, DecodeStep))
                finished += self._collect(leave=self._lag)
            else:
                finished += self._shrink(step)
            seconds = time.perf_counter() - started
        if isinstance(step, PrefillStep):
            self.stats.prefill_seconds += seconds
        else:
            self.stats.decode_seconds += seconds
        self._observe()
        self._weigh_swaps()
        return finished

    def _weigh_swaps(self) -> None:
        """See what a token costs that is computed again, and whether host memory was too small.

        What the ranks do hangs on the times of rank 0 alone, which tells them their batches.
        """
        swapping, stats = self.scheduler.swapping, self.stats
        seconds, tokens = stats.decode_seconds, self.scheduler.row_steps
        if swapping.one_pass:
            seconds = stats.prefill_seconds
            tokens = stats.prompt_tokens_computed + swapping.tokens_filled
        swapping.seconds_a_token = seconds / max(1, tokens)
        if swapping.refused and not self._said_full:
            self._said_full = True
            warnings.warn(
                f"swap_space is full: host memory for {swapping.num_slots:,} KV blocks is too "
                "small for all samples that are preempted, and some compute their KV again",
                stacklevel=2,
            )

    def end(self) -> None:
        """End the job; whatever is not finished is dropped."""
        self._busy = False
        self._forks.clear()
        self._cancelled.clear()
        self._in_flight.clear()
        self.scheduler.clear(self._whole)
        if not self._whole:
            self._paths = Paths(self.config.block_size)
        self._observe()

    def reset_prefix_cache(self) -> None:
        """Forget what prompts shared, between two jobs: the next one is as a new engine's first.

        Raises UsageError while a job runs.
        """
        if self._busy:
            raise UsageError("a job runs: finish or close it first")
        self.scheduler.cache.forget_idle()
        self._paths = Paths(self.config.block_size)

    # -- samples that run -------------------------------------------------------------------------

    def cancel(self, key: int, samples: Collection[int] | None = None) -> list[int]:
        """End samples of a request that run or wait; returns which these were.

        Call it while a job runs, between two completions. samples: their indices, by default all
        that the request has left. Their KV is free in the next step, nothing more comes of them,
        and they are no completions. What has finished already stays as it is, and a request that
        has not been read yet is not touched. Raises UsageError outside of a job.
        """
        self._need_job("there is nothing to cancel: no job runs")
        with self._doing():
            ended = self.scheduler.cancel(key, samples)
        self._cancelled.update((key, sample) for sample in ended)
        self._observe()
        return ended

    def call(self, key: int, due: int) -> None:
        """Let the samples of a request with an index below `due` start before those that are not.

        Raises UsageError outside of a job.
        """
        self._need_job("there are no samples to call: no job runs")
        self.scheduler.call(key, due)

    def _need_job(self, without: str) -> None:
        if not self._busy:
            raise UsageError(without)

    def fork(
        self,
        parent: Completion | tuple[int, int],
        params: SamplingParams | None = None,
        *,
        tokens: int | None = None,
    ) -> int:
        """Continue a sample into `params.n` new ones that share all of its text.

        Call it while `generate` runs, between two completions. parent: a completion of this job,
        or (request key, sample) of one that runs (see `running`). params: the parent's by default;
        max_tokens, min_tokens and the penalties on outputs count new tokens; structured_outputs
        that are the parent's go on within its text, others begin anew. tokens: how many of the
        parent's outputs are gone on from (all by default): fewer resamples its tail.

        The new samples come out of the running `generate` as completions of a request of their
        own, whose prompt is the parent's with those outputs; the key of that request is returned.
        It hangs on what is forked alone, and further forks of the same text get further sample
        indices, so the draws do not depend on when one forks. KV is shared and not computed again
        while the parent runs, and where its request says `keep`, as long as memory lasts after.

        Raises UsageError outside of a job or where no such sample runs, and like `check`.
        """
        self._need_job(
            "a fork joins the job that runs: start one, or generate from the prompt and tokens"
        )
        place = parent if isinstance(parent, tuple) else (parent.request.key, parent.sample)
        key, sample = place
        sequence = self.scheduler.find(key, sample)
        if isinstance(parent, Completion):
            origin, outputs = parent.request, parent.token_ids
            if sequence is not None and sequence.group.request is not origin:
                sequence = None  # of another job
        elif sequence is not None and sequence.group.search is not None:
            raise UsageError(f"request {key} is a beam search that runs: fork its completions")
        elif sequence is not None and not sequence.finished:
            origin, outputs = sequence.group.request, sequence.tokens
        elif place in self._cancelled:
            raise UsageError(f"sample {sample} of request {key} was cancelled: fork another one")
        else:
            raise UsageError(f"sample {sample} of request {key} does not run: fork its completion")
        count = len(outputs) if tokens is None else tokens
        if not 1 <= count <= len(outputs):
            raise UsageError(f"tokens is {count}: the sample has {len(outputs)}, give 1 to that")
        if params is None and origin.beam is not None:
            raise UsageError(
                "a text that a beam search found is forked with SamplingParams: give some"
            )
        params = params or origin.params
        new_key = row_key(count, key, sample)
        first = self._forks.get(new_key, 0)
        prompt = [*origin.prompt_token_ids, *outputs[:count]]
        samples = range(first, first + params.n)
        request = Request(
            new_key, prompt, params, samples, origin.keep,
            text_tokens=_text_tokens(origin, params, count),
        )  # fmt: skip
        self.check(request)
        self._forks[new_key] = samples.stop
        self.stats.prompt_tokens_asked += len(prompt) * params.n
        with self._doing():
            self.scheduler.fork(request, sequence)
        return new_key

    def running(self) -> dict[tuple[int, int], list[int]]:
        """The outputs so far of all samples that run, by (request key, sample).

        Of a beam search these are the beams as they rank now.
        """
        found: dict[tuple[int, int], list[int]] = {}
        for sequence in (*self.scheduler.rows.running(), *self.scheduler.unseated()):
            if not sequence.finished:
                beams = sequence.group.beams
                for sample in sequence.samples:
                    of_sample = beams[sample] if beams else sequence
                    found[sequence.group.request.key, sample] = list(of_sample.tokens)
        return found

    def _fill(self, source: Iterator[Request]) -> None:
        """Read requests until there is work: those read together may have no samples left to draw.

        The same are read together whatever is done already, so that a resumed job shares and
        computes what it would have.
        """
        while requests := list(islice(source, self.config.lookahead)):
            for request in requests:
                if request.samples:
                    self.check(request)
            self.add(requests)
            if self.scheduler.has_work:
                break

    def _run(self, step: Step) -> bool:
        """Launch a step; False where memory does not suffice for it."""
        if self._others is not None:
            self._others.tell(step.batch)
        try:
            drawn = self.runner.run(step.batch)
        except TakenBack:
            return False
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self._others is not None:
                raise rank_out_of_memory(0) from error
            return False
        if isinstance(step, PrefillStep):
            self.stats.prefill_steps += 1
        else:
            self.stats.decode_steps += 1
            levels = " ".join(map(str, self.runner.shared_levels))
            steps = self.stats.steps_by_levels
            steps[levels] = steps.get(levels, 0) + 1
        self.stats.slow_steps += self.stats.slow_attention is not None
        self._in_flight.append((step, drawn))
        return True

    def _collect(self, leave: int) -> list[Completion]:
        """Read steps, the oldest first, until no more than so many are in flight."""
        finished: list[Completion] = []
        while len(self._in_flight) > leave:
            step, drawn = self._in_flight.popleft()
            if self._others is not None:
                self._others.wait(drawn)
            finished += self.collector.collect(step, drawn)
        return finished

    def _shrink(self, step: Step) -> list[Completion]:
        """Take back a step for which there was no memory, and go on with smaller ones."""
        smaller = self.scheduler.shrink(step)
        finished = self._collect(leave=0)  # what ran before it is good
        self.runner.spare_memory()
        if smaller is not None:
            self.stats.shrinks += 1
            warnings.warn(f"out of memory: from now on {smaller}", stacklevel=2)
        elif not finished:  # where some have finished, there is less to do than before
            raise CapacityError(
                f"out of memory even with {self.scheduler.max_sequences} sequences and prompts of "
                f"{self.scheduler.prefill.chunk_tokens} tokens at a time: a smaller KV cache "
                "leaves more to the model"
            )
        return finished

    def _observe(self) -> None:
        stats, scheduler = self.stats, self.scheduler
        stats.prompt_tokens_computed = scheduler.cache.tokens_computed
        stats.prompt_tokens_recomputed = scheduler.cache.tokens_recomputed
        stats.prompt_tokens_found = scheduler.cache.tokens_found
        stats.preemptions = scheduler.preemptions
        stats.swaps = scheduler.swapping.swaps
        stats.tokens_replayed = scheduler.tokens_replayed
        stats.cancelled = scheduler.cancelled
        stats.cancelled_tokens = scheduler.cancelled_tokens
        stats.running = scheduler.num_running
        stats.waiting = scheduler.prefill.num_waiting + len(scheduler.ready)
        stats.blocks_used = self.pool.num_used - scheduler.cache.idle_blocks
        stats.peak_blocks = self.pool.peak_used
        stats.peak_kv = self.meter.peak.counts(self._place_bytes)
        stats.kv_in_steps = self.meter.in_steps
        stats.peak_states = scheduler.states.peak_used


def _text_tokens(parent: Request, params: SamplingParams, outputs: int) -> int:
    """How much of a fork's prompt is text of its structured outputs: its parent's, if they had the
    same."""
    asked = params.structured_outputs
    if asked is None or asked != parent.params.structured_outputs:
        return 0
    return parent.text_tokens + outputs
