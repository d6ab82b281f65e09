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
from threading import Lock
from typing import Any

import torch

from sharegen.common.at_exit import closed_at_exit
from sharegen.common.start_clock import START, WARMING_UP
from sharegen.engine.cache.arrivals import with_splits
from sharegen.engine.cache.paths import Paths
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.config import EngineConfig, EngineStats
from sharegen.engine.core.lengths import Lengths
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.execute.agreement import asked
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.execute.memory import is_out_of_memory, rank_out_of_memory
from sharegen.engine.execute.process import short_collections, uninterrupted, using
from sharegen.engine.execute.room import TakenBack
from sharegen.engine.grammar.grammars import Grammars
from sharegen.engine.loop.checking import Checks
from sharegen.engine.loop.collecting import Collector
from sharegen.engine.loop.forking import Forks, SoFar, outputs_of, outputs_so_far
from sharegen.engine.loop.masking import masked
from sharegen.engine.loop.observing import Observer
from sharegen.engine.loop.starting import (
    ATTENTION_MODES,
    rehearse,
    scheduler_for,
    warm_up,
    warn_of_an_end_that_is_none,
    warn_of_slow_parts,
)
from sharegen.engine.model.lent.watching import Look
from sharegen.engine.model.loaded import LoadedModel, on
from sharegen.engine.model.new_weights import NewWeights
from sharegen.engine.model.offloading import move_weights
from sharegen.engine.prepared import OtherRanks, Prepared, Start
from sharegen.engine.schedule.step import Step
from sharegen.errors import CapacityError, SharegenError, UsageError, WeightsMovedError
from sharegen.kernels.cost import CostModel, load_costs


class Engine:
    """One model, its KV cache, and the loop that keeps them busy.

    Args:
        model: as `load_model` returns it.
        tokenizer: turns outputs into text; None for a model without one.
        config: sizes and options; by default those of `EngineConfig()`.
        tree: an empty tree, which says what prompts store once; by default all that is worth it.
        costs: decides which nodes of the tree are shared reads. By default those that are faster
            so on this GPU, and all on a CPU; with EACH_ROW every node is read per sequence.
        other_ranks: the other ranks, where the model is this rank's shard of one.

    Raises:
        CapacityError: there is not as much memory as is asked for.
        UsageError: an option does not fit the device.
    """

    def __init__(
        self,
        model: LoadedModel,
        tokenizer: Any | None,
        config: EngineConfig | None = None,
        *,
        tree: PrefixTree | None = None,
        costs: CostModel | None = None,
        other_ranks: OtherRanks | None = None,
    ) -> None:
        assert (other_ranks is None) == (model.ranks is None)
        self.config = config or EngineConfig()
        length = self.config.max_model_len
        self.model = model if length is None else model.within(length)
        self.tokenizer = tokenizer
        # On a GPU the host works one step behind: it reads a step's tokens while the next one runs.
        self._lag = 1 if model.device.type == "cuda" else 0
        self._in_flight: deque[tuple[Step, Drawn]] = deque()
        self._tree = tree
        self._other_ranks = other_ranks
        self._paths = Paths(self.config.block_size)
        self._busy = self._arriving = False
        self._beginning = Lock()  # to look at a module's weights takes time, in which others come
        self._whole = True  # nothing was interrupted half-way in this job
        self._closed = self._asleep = self._is_away = False
        self._moved: str | None = None  # a weight that graphs read where it was
        self._said_full = False
        self._forks = Forks()
        self._grammars = Grammars(tokenizer, model.eos_token_ids, model.vocab_size)
        self._checks = Checks(self.model, tokenizer, self._grammars)
        with on(model.device):
            self._prepare(costs)
        self.model.weights.look()  # as they are now, in memory that may be another than before

    def _prepare(self, costs: CostModel | None) -> None:
        """Make the device ready, and on a GPU run small jobs in every attention mode.

        Where nothing is to be compiled before the first token, kernels are when they are needed.
        """
        self._prepared = prepared = Prepared(self.model, self.tokenizer, self.config)
        self._has_latents = bool(prepared.cache.latents)
        self.threads = prepared.threads
        on_gpu = self.model.device.type == "cuda"
        if costs is None and on_gpu:
            costs = load_costs(torch.cuda.get_device_name(self.model.device))
        # A deterministic engine reads the tree in one way, which the job's tree decides.
        modes = (costs,) if self.config.deterministic else ATTENTION_MODES
        with START.part(WARMING_UP):
            for mode in modes if on_gpu and self.config.compiles else ():
                self._warm_up(prepared, mode)
        self._costs = costs
        self._start(prepared, costs)
        self._rehearse(prepared)
        warn_of_slow_parts(self.stats, on_gpu)
        warn_of_an_end_that_is_none(self.tokenizer, self.model.eos_token_ids)

    def _warm_up(self, prepared: Prepared, mode: CostModel | None) -> None:
        self._start(prepared, mode)
        if self.stats.slow_attention is None:
            warm_up(self.generate, self.reset_prefix_cache, self.slots, self.config.block_size)
        del self.runner  # its buffers, before there are others

    def _rehearse(self, prepared: Prepared) -> None:
        """Where requests are to arrive, capture the graphs of their steps before the first."""
        if not self.config.arriving or self.runner.graphs is None:
            return
        with START.part(WARMING_UP):
            rehearse(
                self.generate, self.reset_prefix_cache, prepared.padded, self.slots,
                self.config.block_size,
            )  # fmt: skip
        self._begin_books(prepared)
        self.scheduler.rows.send_all_again()  # what the device has is of the rehearsal

    def _start(self, prepared: Prepared, costs: CostModel | None) -> None:
        """Everything that a job changes, as it is before the first one."""
        start = Start(costs, checked=asked())
        if self._other_ranks is not None:
            self._other_ranks.broadcast(start)
        self.runner = prepared.runner(start)
        self._begin_books(prepared)

    def _begin_books(self, prepared: Prepared) -> None:
        """A scheduler with nothing to do, and counts of nothing."""
        self.scheduler = scheduler_for(prepared, self.config, self._tree)
        self.pool = self.scheduler.pool
        self.observer = Observer(prepared, self.scheduler, self.runner.attention.fallback)
        self.stats: EngineStats = self.observer.stats
        ends = self.model.eos_token_ids
        self.collector = Collector(self.scheduler, self.stats, self.tokenizer, ends)

    def close(self) -> None:
        """Free the KV cache and release the model; a job that runs ends with UsageError."""
        if self._closed:
            return
        self._closed = True
        if self._other_ranks is not None:
            self._other_ranks.settle()
        if not self._asleep:
            del self.runner  # with the cache's tensors and the CUDA graphs
        del self._prepared
        self.model.release()  # which may copy weights, and so needs the room of the cache
        if self._other_ranks is not None:
            self._other_ranks.close()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()  # so that the next one finds the memory free

    def check(self, *requests: Request) -> None:
        """Raise an error, in one line, for the first request that can never run.

        Raises:
            RequestError: the request's values do not fit the model. So it is with a request that
                might outgrow RoPE frequencies which change with the length.
            CapacityError: its longest sample would not fit into the KV cache.
        """
        self._need_awake()
        for request in requests:
            error = self._error(request)
            if error is not None:
                raise error

    def errors(self, requests: Sequence[Request]) -> list[SharegenError | None]:
        """Return for each request what `check` raises, or None."""
        self._need_awake()
        return [self._error(request) for request in requests]

    def _error(self, request: Request) -> SharegenError | None:
        return self._checks.error(request, self.scheduler, self.runner)

    @closed_at_exit
    def generate(
        self,
        requests: Iterable[Request],
        *,
        seed: int | None = None,
        lengths: Lengths | None = None,
    ) -> Generator[Completion, None, None]:
        """Draw all samples of all requests; completions come as they finish, in any order.

        Closing the iterator early drops what is unfinished.

        Args:
            requests: read as they are needed, `lookahead` at a time; each is checked then.
            seed: random seed of requests and forks without one; by default the config's.
            lengths: the lengths of samples of the same job that were drawn earlier.

        Raises:
            UsageError: the engine is closed, or another job runs.
            RequestError, CapacityError: a request can never run (see `check`).
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

    def begin(
        self, seed: int | None = None, lengths: Lengths | None = None, arriving: bool = False
    ) -> None:
        """Start a job by hand; `generate` starts and ends one by itself.

        Args:
            seed, lengths: as `generate` takes them.
            arriving: whether requests come one by one while others run, and nobody knows the next.
                Then each shares what stands (`cache/arrivals.py`), and prompts that are done stay
                for later ones.

        Raises:
            UsageError: the engine is closed, a job runs, or the model's weights have moved.
        """
        with self._beginning:
            if self._closed:
                raise UsageError("the engine is closed: make a new one")
            if self._busy:
                raise UsageError("an engine does one job at a time: finish or close the first one")
            self._need_awake()
            self._look_at_weights()
            self.scheduler.seed = self.config.seed if seed is None else seed
            if lengths is not None:
                self.scheduler.admission.lengths.learn(lengths)
            self._busy = self._whole = True
            self.scheduler.rows.forget_size()
            self._keep_leaves(arriving)

    def _look_at_weights(self) -> None:
        """See whether somebody has trained the module, or put other weights into it."""
        if self._look() != "same":
            self.reset_prefix_cache()
            self.model.refresh()
            warnings.warn(
                "the model's weights have changed since the last call: cached prompts are computed "
                "again (weights_changed() says so without this line)",
                stacklevel=2,
            )

    def _look(self) -> Look:
        """What has become of the weights.

        Raises WeightsMovedError, from then on, where they lie elsewhere than graphs read them.
        """
        look = self.model.weights.look()
        if look == "moved" and self.model.device.type == "cuda" and not self.config.enforce_eager:
            self._moved = self.model.weights.moved
        if self._moved is not None:
            raise WeightsMovedError(
                f"the model's {self._moved} was moved in memory, and CUDA graphs and compiled "
                "layers read it where it was: write new numbers with copy_(), or close this LLM "
                "and make a new one"
            )
        return look

    @contextmanager
    def _doing(self) -> Iterator[None]:
        """Stand around what must not stop in the middle; where it did, the job's end forgets
        all.
        """
        was, self._whole = self._whole, False
        yield
        self._whole = was

    def add(self, requests: Sequence[Request]) -> None:
        """Put requests that were checked to the job; their sharing is looked for together."""
        for request in requests:
            self.stats.prompt_tokens_asked += len(request.prompt_token_ids) * len(request.samples)
        with self._doing():
            splits = None
            if self._arriving and requests and not self.scheduler.states.are_kept:
                requests = with_splits(self.scheduler.cache, requests)
            elif self._tree is None and requests and requests[0].splits is None:
                splits = self._paths.splits([request.tokens for request in requests])
            self.scheduler.add_requests(requests, splits)

    @property
    def slots(self) -> int:
        """The number of samples that decode together."""
        return self.scheduler.max_sequences

    @property
    def num_unfinished(self) -> int:
        """The number of samples that run or wait."""
        return self.scheduler.num_unfinished

    @property
    def is_busy(self) -> bool:
        """Whether a job has begun and not ended."""
        return self._busy

    @property
    def has_work(self) -> bool:
        """Whether something of the job is not finished."""
        return self.scheduler.has_work or bool(self._in_flight)

    def step(self) -> list[Completion]:
        """Schedule a step, run it, and collect the steps that are done.

        With a step just launched, the host leaves the last ones running, as many as the lag says.
        """
        if self._closed:
            raise UsageError("the model was closed while a job ran")
        if self._other_ranks is None:
            with self._doing():
                return self._step()
        with uninterrupted():  # the other ranks would wait for the rest of the step
            try:
                with self._other_ranks.together(), self._doing():
                    return self._step()
            except BaseException:  # a step that some ranks have done, and some not, is the last
                self._other_ranks.end()
                self.close()
                raise

    def _step(self) -> list[Completion]:
        with using(self.threads), on(self.model.device):
            finished = self._collect(leave=0) if self.scheduler.needs_sync else []
            step = self.scheduler.schedule(is_idle=not self._in_flight)
            started = time.perf_counter()
            if step is not None:
                step = masked(step, self._grammars)
            if step is None:
                finished += self._collect(leave=0)
            elif self._run(step):
                finished += self._collect(leave=self._lag * (1 + self.scheduler.can_overlap))
            else:
                finished += self._shrink(step)
            seconds = time.perf_counter() - started
        self.observer.took(step, seconds)
        self._say_when_full()
        return finished

    def _say_when_full(self) -> None:
        """Warn, once, where host memory was too small for who is preempted."""
        swapping = self.scheduler.swapping
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
        self._keep_leaves(False)
        self._forks.clear()
        self._in_flight.clear()
        self.scheduler.clear(self._whole)
        if not self._whole:
            self._paths = Paths(self.config.block_size)
        self.observer.read()

    def _keep_leaves(self, arriving: bool) -> None:
        """Whether prompts stay for later ones. Such are spread out: nobody comes for latents."""
        cache = self.scheduler.cache
        self._arriving = cache.keeps_leaves = arriving
        if self._has_latents:
            cache.marks_alone = not arriving

    def reset_prefix_cache(self) -> None:
        """Forget what prompts shared, between two jobs: the next one is as a new engine's first.

        Raises UsageError while a job runs.
        """
        if self._busy:
            raise UsageError("a job runs: finish or close it first")
        self.scheduler.cache.forget_idle()
        self._paths = Paths(self.config.block_size)

    def weights_changed(self) -> None:
        """Forget what was computed with the model's weights as they were, between two jobs.

        Raises UsageError while a job runs, or where a GPU's weights lie elsewhere.
        """
        if not self._is_away:
            self.reset_prefix_cache()  # raises while a job runs, before the change is noted
            self._look()
            self.model.refresh()

    def take_weights(self, new: NewWeights) -> None:
        """Compute with another checkpoint's weights from now on, between two jobs.

        new: read for this engine's model. Raises UsageError while a job runs, or the engine sleeps.
        """
        self._need_awake()
        self.reset_prefix_cache()
        with on(self.model.device):
            new.put()
        self.weights_changed()

    def sleep(self) -> None:
        """Give back the memory of KV cache, states, swap space and CUDA graphs, between two jobs.

        Weights that the engine's own model has go to the host; a module that is lent keeps its own
        where they are. What was kept of earlier prompts is forgotten. Sleeping twice does nothing.

        Raises UsageError while a job runs, for a model that is cut among GPUs, and for weights that
        cannot be moved.
        """
        if self._other_ranks is not None:
            raise UsageError("a model that is cut among GPUs does not sleep: close it")
        self.reset_prefix_cache()
        if self.model.lent is None and not self._is_away:
            move_weights(self.model.model, torch.device("cpu"))
            self._is_away = True
        if not self._asleep:
            self._asleep = True
            del self.runner
            self._prepared.give_memory_back()

    def wake_up(self, weights: bool = True, kv_cache: bool = True) -> None:
        """Take the memory again, or as much less as others have taken since, with a warning.

        Graphs are captured anew as steps need them, where requests arrive before the first, and
        stats begin anew.

        Args:
            weights, kv_cache: what to take; weights come first, where they are on the host.

        Raises CapacityError where too little is left, and sleeps on.
        """
        with on(self.model.device):
            if weights and self._is_away:
                move_weights(self.model.model, self.model.device)
                self._is_away = False
                self.model.weights.look()  # where they lie now
            if kv_cache and self._asleep:
                if self._is_away:
                    raise UsageError("the weights sleep: they wake up before the KV cache")
                self._prepared.take_memory_again()
                self._start(self._prepared, self._costs)
                self._asleep = False
                self._rehearse(self._prepared)

    def _need_awake(self) -> None:
        if self._asleep or self._is_away:
            raise UsageError("the engine sleeps: wake_up() first")

    # -- samples that run -------------------------------------------------------------------------

    def cancel(self, key: int, samples: Collection[int] | None = None) -> list[int]:
        """End samples of a request that run or wait.

        Call it while a job runs, between two completions. The samples' KV is free in the next step,
        nothing more comes of them, and they are no completions. What has finished already stays as
        it is, and a request that has not been read yet is not touched.

        Args:
            key: the request's key.
            samples: indices of samples; by default all that the request has left.

        Returns:
            The indices of the samples that were ended.

        Raises:
            UsageError: no job runs.
        """
        self._need_job("there is nothing to cancel: no job runs")
        with self._doing():
            ended = self.scheduler.cancel(key, samples)
        if not self._arriving:  # a job that never ends would remember them for ever
            self._forks.cancelled(key, ended)
        self.observer.read()
        return ended

    def call(self, key: int, required: int) -> None:
        """Let some samples of a request start before the speculative ones.

        Args:
            key: the request's key.
            required: samples with an index below it are required from now on.

        Raises:
            UsageError: no job runs.
        """
        self._need_job("there are no samples to call: no job runs")
        self.scheduler.call(key, required)

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

        Call it while `generate` runs, between two completions. The new samples come out of the
        running `generate` as completions of a request of their own, whose prompt is the parent's
        with those outputs. The key of that request depends on what is forked alone, and further
        forks of the same text get further sample indices, so the draws do not depend on when one
        forks. KV is shared and not computed again while the parent runs, and where its request says
        `keep`, as long as memory lasts after; a deterministic engine computes it anew.

        Args:
            parent: a completion of this job, or (request key, sample) of one that runs (see
                `running`).
            params: by default the parent's. max_tokens, min_tokens and the penalties on outputs
                count new tokens; structured_outputs that are the parent's go on within its text,
                others begin anew.
            tokens: how many of the parent's outputs are gone on from; by default all. Fewer
                resample its tail.

        Returns:
            The key of the request of the new samples.

        Raises:
            UsageError: no job runs, or no such sample does.
            RequestError, CapacityError: the new samples can never run (see `check`).
        """
        self._need_job(
            "a fork joins the job that runs: start one, or generate from the prompt and tokens"
        )
        origin = self._forks.parent(parent, self.scheduler)
        request = self._forks.request(origin, params, tokens)
        self.check(request)
        self._forks.add_fork(request)
        self.stats.prompt_tokens_asked += len(request.prompt_token_ids) * len(request.samples)
        with self._doing():
            self.scheduler.fork(request, origin.request, origin.sequence)
        return request.key

    def running(self) -> dict[tuple[int, int], list[int]]:
        """The outputs so far of all samples that run, by (request key, sample).

        For a beam search these are the beams as they rank now.
        """
        return outputs_so_far(self.scheduler)

    def so_far(self, key: int) -> list[SoFar]:
        """What the samples of one request that run have drawn until now."""
        return outputs_of(self.scheduler, key)

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
        if self._other_ranks is not None:
            self._other_ranks.broadcast(step.batch)
        try:
            drawn = self.runner.run(step.batch)
        except TakenBack:
            return False
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self._other_ranks is not None:
                raise rank_out_of_memory(0) from error
            return False
        self.observer.launched(step, self.runner)
        self._in_flight.append((step, drawn))
        return True

    def _collect(self, leave: int) -> list[Completion]:
        """Read steps, the oldest first, until no more than so many are in flight."""
        finished: list[Completion] = []
        while len(self._in_flight) > leave:
            step, drawn = self._in_flight.popleft()
            with self.observer.waiting():
                if self._other_ranks is not None:
                    self._other_ranks.wait(drawn)
                drawn.wait()
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
