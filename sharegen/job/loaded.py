"""A job whose model is loaded: what its journal lacks is drawn.

This is the only place where the three wings meet: it takes problems from the workload, puts them to
the engine and writes what comes out to the journal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from sharegen.common.parameters.machine import EngineParameters
from sharegen.common.parameters.parameter import values_of
from sharegen.common.start_clock import START, WEIGHTS, WORKERS, with_engine
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.core.lengths import Lengths
from sharegen.engine.model.checkpoint.folder import check_name
from sharegen.engine.model.compile.rule import shape_of
from sharegen.engine.model.starting.on_disk import model_on_disk
from sharegen.engine.model.starting.read_ahead import read_ahead
from sharegen.engine.parallel.copies import ForkServer
from sharegen.engine.parallel.outline import ModelOutline
from sharegen.errors import DataError, SharegenError
from sharegen.job.arithmetic import arithmetic, log_other_bits
from sharegen.job.beside import finished_beside
from sharegen.job.compile_rule import shape_on_disk, with_compile
from sharegen.job.counts import close_run
from sharegen.job.drawn_again import DrawnAgain, draw_again
from sharegen.job.engines import EngineSpec, start, workers_of
from sharegen.job.environment import environment
from sharegen.job.imports import import_engine, on_cpu, put_off_torch
from sharegen.job.job_content import JobContent, of_machine
from sharegen.job.judging import Judge
from sharegen.job.machine import (
    blocks_of,
    distance_from_stored,
    extents,
    kv_cache_limit,
    load,
    max_sequences,
    prepare_templates,
    single,
    tokenizer_of,
    versions,
)
from sharegen.job.outcome import all_failed
from sharegen.job.pending import PendingProblem, admitted, earlier_progress, pending_problems
from sharegen.job.recording import record_of
from sharegen.job.reordering import saved_by_order
from sharegen.job.share import Share, paths_of
from sharegen.job.sharing_plan import SharingPlan, make_plan, shared_tokens
from sharegen.job.stop_when import Stopping
from sharegen.job.template_clock import clock_of, log_clock
from sharegen.job.watcher import Watcher
from sharegen.results.journal.appended import AppendedFile
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.journal import Journal, Record
from sharegen.results.journal.journal_family import JournalFamily
from sharegen.results.journal.keys import Keys
from sharegen.results.journal.pool import Pool
from sharegen.results.screen.pace import Pace
from sharegen.results.screen.progress import longest_of
from sharegen.results.stopping.stopped import Stopped
from sharegen.workload.clock import Clock
from sharegen.workload.problem import tokenise_problems
from sharegen.workload.sampling_section import Sampling

if TYPE_CHECKING:
    import torch

    from sharegen.engine.core.request import Request
    from sharegen.engine.model.loaded import LoadedModel
    from sharegen.engine.verifying import Verification, Verified
    from sharegen.workload.configuration import Configuration


_FIRST_ROWS = 32  # on a CPU a step of 64 takes half as long again, and one of 8 no less


def _is_told(
    server: ForkServer, configuration: Configuration, samplings: Sequence[Sampling]
) -> bool:
    """Whether the process that loads the model for its copies tells what is asked of it here.

    Nothing is gained where torch is imported already.
    """
    machine = configuration.machine
    is_counted = isinstance(machine.workers, int)
    if is_counted and workers_of(configuration, samplings) == 1:
        return False
    return server.is_loading and not machine.deterministic and "torch" not in sys.modules


class LoadedJob:
    """A job, or a shard's share of it, whose model is loaded and whose prompts are tokens."""

    def __init__(
        self,
        content: JobContent,
        own: FoundJournal,
        watcher: Watcher,
        verify: int | None = None,
        share: Share | None = None,
        others: Sequence[FoundJournal] = (),
        server: ForkServer | None = None,
        clock: Clock | None = None,
        check_determinism: int | None = None,
    ) -> None:
        """Take the job's files. own: the journal that is written. server: what workers on a CPU are
        copies of, where it runs already. clock: what chat templates see, and saw if the prompts of
        a share are tokens already.
        """
        started = time.monotonic()
        samplings = [problem.sampling for problem in content.workload.problems]
        configuration = content.configuration
        if configuration.machine.ray is None:
            check_name(str(configuration.model))
            place = model_on_disk(str(configuration.model), configuration.revision)
            if place is not None:
                read_ahead(place)
        if not on_cpu(configuration):
            configuration = with_compile(configuration, samplings, shape_on_disk(configuration))
        computes = workers_of(configuration, samplings) == 1
        copied_from = None
        if verify is None and server is not None and _is_told(server, configuration, samplings):
            copied_from = server
            put_off_torch()
        else:
            import_engine(configuration, computes, here=computes)  # before what imports all of it
        from sharegen.engine.config import EngineConfig

        self.clock = clock = clock or clock_of(configuration, JournalFamily(own.path, own))
        self.workload = content.workload
        self.own = own
        self.path = own.path
        self.share = share
        self.others = others
        self.watcher = watcher
        self.verification: Verification | None = None
        if verify is not None:
            from sharegen.engine.verifying import Verification

            self.verification = Verification(verify)
        self._check_determinism = check_determinism
        self.engine_spec = EngineSpec.of(configuration, samplings, copied_from is not None)
        if verify is not None:
            self.engine_spec.check_verifiable(configuration)
        device = self.engine_spec.device
        self.model: LoadedModel | ModelOutline
        self.prompts: Sequence[Sequence[int]]
        if copied_from is not None:
            self._load_apart(copied_from, configuration, share is None)
        else:
            model, self.tokenizer = load(configuration, not self.engine_spec.apart, device)
            if device.type == "cuda":
                configuration = with_compile(configuration, samplings, shape_of(model.config))
            self.model = model
            if share is None:
                self._tokenise()
        self.dtype = str(self.model.dtype).removeprefix("torch.")
        self.configuration = configuration
        self.splits: Sequence[Sequence[int]]  # which the engine's tree follows: it finds none anew
        self.alone: Sequence[int]
        if share is None:
            asked = [prompt for prompt in self.prompts if prompt]
            self.tree = PrefixTree.build(
                asked,
                configuration.machine.block_size,
                alone=single(configuration, self.model, self._samplings()),
            )
            self.splits, self.alone = paths_of(self.tree, self.prompts)
        else:
            self.prompts, self.splits, self.alone = share.prompts, share.splits, share.alone
            paths = zip(self.prompts, self.splits, self.alone, strict=True)
            self.tree = self._tree_of([path for path in paths if path[0]])
        log_clock(clock, configuration)
        self.content = replace(content, workload=self.workload, configuration=configuration)
        machine = configuration.machine
        self.blocks = blocks_of(configuration, self.model)
        limit = None
        if machine.kv_cache_memory is None:
            limit = kv_cache_limit(configuration, self.model, device, self.tree, self._samplings())
        config = EngineConfig(
            **values_of(EngineParameters, machine) | {"max_sequences": self._most_rows(device)},
            kv_cache_limit=limit,
            first_rows=_FIRST_ROWS,
            seed=configuration.sampling.seed,
        )
        with START.part(WORKERS) if self.engine_spec.apart else nullcontext():
            self.engine = start(
                self.engine_spec, configuration, config, self.model, self.tokenizer, server
            )
        self.loading_seconds = time.monotonic() - started

    def _load_apart(
        self, server: ForkServer, configuration: Configuration, tokenises: bool
    ) -> None:
        """Take the tokenizer, and of the model what the process says that workers are copies of.

        The prompts become tokens while it loads. Where it could not load the model, or something
        is wrong here, the model is loaded here first: what is wrong with it is said first.
        """
        try:
            prepare_templates(configuration)
            self.tokenizer = tokenizer_of(configuration, with_torch=False)
            if tokenises:
                self._tokenise()
        except SharegenError:
            load(configuration, weights=False)
            raise
        with START.part(WEIGHTS):
            outline = server.outline()
        if outline is None:
            self.model, _ = load(configuration, weights=False)
        else:
            self.model = outline

    def _tokenise(self) -> None:
        """Make tokens of all prompts."""
        self.workload, self.prompts = tokenise_problems(self.workload, self.tokenizer, self.clock)

    def close(self) -> None:
        """End the engines."""
        self.engine.close()

    def open_journal(
        self,
        file: AppendedFile,
        extent: Mapping[str, Any],
        overwrite: bool,
        command: str | None = None,
        adopt: bool = False,
    ) -> Journal:
        dtype = self.dtype
        used = versions()
        if self.configuration.machine.deterministic:
            used |= arithmetic(self.engine_spec.device)
            if not overwrite and self.own.run is not None:
                log_other_bits(self.path, self.own.run.versions, used)
        return Journal.open(
            self.path,
            self.configuration.identity
            | {"dtype": dtype, "quantization": self.model.quantization}
            | of_machine(self.configuration, dtype),
            fingerprints=self.content.fingerprints(self.model, self.tokenizer)
            | self.clock.fingerprint,
            extent={**self.configuration.extent, **extent},
            versions=used,
            environment=environment(self.engine_spec.device, self.configuration, command),
            reading=self.content.reading,
            overwrite=overwrite,
            adopt=adopt,
            file=file,
            found=self.own,
        )

    def sample(
        self,
        journal: Journal,
        strict: bool,
        retry_failed: bool,
        held: Any,
        judge: Judge | None = None,
    ) -> int:
        """Draw what the journal lacks and close it; returns how many samples that were.

        judge: of programs, where how many are drawn depends on their tests.

        Raises ModelError where not one sample came out, of this run and those before it.
        """
        machine = self.configuration.machine
        finished = self._finished(journal, retry_failed)
        stopping = self._stopping(finished, judge)
        asked, requests = self._ask(journal, strict, finished, stopping)
        by_key = {item.request.key: item for item in asked}
        left = {item.request.key: len(item.request.samples) for item in asked}
        assert len(by_key) == len(asked)
        tree = self._tree_of_asked(asked)
        plan = self._plan(asked, tree)
        journal.begin({"problems": plan.problems, "samples_asked": plan.samples})
        self.watcher.planned(plan, self.path, sum(item.recorded for item in asked))
        total, problems = sum(left.values()), sum(1 for count in left.values() if count)
        pace = Pace(journal.run.timings, journal.run.stats)
        started, cpu_started = time.monotonic(), time.process_time()
        ended: float | None = None
        counted: dict[str, Any] | None = None
        verified = drawn_again = None
        drawn = 0
        longest = longest_of(item.problem.sampling.max_tokens for item in asked)
        if self.verification is not None:
            requests = self.verification.choose(requests)
        try:
            bar = self.watcher.sampling(
                self.engine.stats, total, problems, longest, earlier_progress(asked, journal)
            )
            with bar as progress:
                START.wait_for_first_sample()
                known = Lengths.of(journal.on_record.lengths)
                for completion in self.engine.generate(requests, lengths=known):
                    key = completion.request.key
                    problem = by_key[key].problem
                    with held.held():
                        record = record_of(completion, problem, self.configuration, self.dtype)
                        journal.append(record)
                        drawn += 1
                    if drawn == 1:
                        START.end()
                    pace.note(time.monotonic() - started, self.engine.stats.generated_tokens)
                    left[key] -= 1
                    if stopping is not None:
                        for decided, saved in stopping.note(record):
                            left[decided] -= saved
                            if progress is not None:
                                progress.save(len(by_key[decided].request.samples), saved)
                    if self.verification is not None and self.verification.wants(completion):
                        self.verification.note(completion)
                    if progress is not None:
                        problem_done = stopping is None and left[key] == 0
                        progress.advance(len(completion.token_ids), problem_done)
            ended, counted = time.monotonic(), asdict(self.engine.stats)
            if stopping is not None:
                stopping.finish()
            drawn_again = self._draw_again(journal, asked, requests)
            verified = self._verify()
        finally:
            with held.held():
                seconds = (ended or time.monotonic()) - started
                cpu_seconds = time.process_time() - cpu_started
                begun = [item.recorded > 0 for item in asked]
                again = shared_tokens(tree, begun, [bool(item.request.samples) for item in asked])
                checked = {"verified": verified, "drawn_again": drawn_again}
                counted = counted or asdict(self.engine.stats)
                timings = {
                    "start": {part: round(s, 3) for part, s in self._start_seconds().items()},
                    "loading_seconds": round(self.loading_seconds, 3),
                    "sampling_seconds": seconds,
                    "cpu_seconds": cpu_seconds,
                    "progress": pace.close(seconds, counted["generated_tokens"]),
                }
                counted |= {"samples_recorded": drawn}
                close_run(journal, plan, counted, again, checked, timings)
        if journal.on_record.errors and not journal.on_record.drawn:
            failed = next(record for record in journal.records() if record.is_sample)
            raise all_failed(failed.key, failed.error)
        if drawn_again is not None and drawn_again.first and machine.deterministic:
            raise drawn_again.error
        return drawn

    def _draw_again(
        self, journal: Journal, asked: Sequence[PendingProblem], requests: Sequence[Request]
    ) -> DrawnAgain | None:
        """Samples on record, in another batch than before, where that is asked."""
        if self._check_determinism is None:
            return None
        problems = {item.problem.id: item.problem for item in asked}
        configuration, dtype = self.configuration, self.dtype
        self.watcher.drawing_again(self._check_determinism)
        return draw_again(
            journal.records(),
            {item.problem.id: item.request for item in asked},
            requests,
            self._check_determinism,
            self.engine.generate,
            lambda name, completion: record_of(completion, problems[name], configuration, dtype),
        )

    def _verify(self) -> Verified | None:
        """The steps that were kept, against the model's own attention; ends the engine."""
        if self.verification is None or not self.verification.steps:
            return None
        self.watcher.verifying(len(self.verification.steps))
        self.engine.close()
        model = load(self.configuration)[0] if self.engine_spec.apart else self.model
        assert not isinstance(model, ModelOutline)
        verified = self.verification.check(model)
        if verified is None or model.quantization is None:
            return verified
        distance = distance_from_stored(self.configuration, model, self.verification.steps)
        return replace(verified, from_checkpoint=distance)

    def _finished(self, journal: Journal, retry_failed: bool) -> Keys:
        """The samples that need not be drawn, here and in the journals beside."""
        if not (retry_failed or self.others):
            return journal.on_record.finished
        finished = Keys()
        finished |= journal.on_record.drawn if retry_failed else journal.on_record.finished
        finished |= finished_beside(self.others, self.content, journal.run, retry_failed)
        return finished

    def _stopping(self, finished: Keys, judge: Judge | None) -> Stopping | None:
        """The rule of the job, with what is on record read under it."""
        sampling = self.configuration.sampling
        if sampling.rule is None:
            return None
        found = Pool([self.own, *self.others]).read_by(self.content.reading)
        stopped = Stopped.read(sampling.rule, sampling.samples, found, finished)
        return Stopping(stopped, self.engine, judge)

    def _ask(
        self, journal: Journal, strict: bool, finished: Keys, stopping: Stopping | None
    ) -> tuple[list[PendingProblem], list[Request]]:
        """The problems that can run, and the requests to put to the engine.

        Rows that are bad and problems that cannot run become lines of the journal.
        """
        self.content.refuse_changed_rows(self.path, journal.on_record.rows)
        self.content.refuse_changed_texts(self.path, journal.on_record.texts)
        for bad in self.workload.bad_rows:
            if strict:
                raise DataError(f"{bad.error} (--strict)")
            journal.append(Record(bad.id, None, None, error=bad.error))
        candidates = pending_problems(
            self.workload.problems, self.prompts, self.splits, self.alone, finished, stopping
        )
        errors = self.engine.errors([item.request for item in candidates])
        return admitted(candidates, errors, journal, strict)

    def _most_rows(self, device: torch.device) -> int | None:
        """Sequences that decode together: on a GPU no more than the job has, for all that is made
        ready for them.
        """
        if device.type == "cpu" or self.configuration.machine.deterministic:
            return self.configuration.machine.max_sequences
        samples = sum(sampling.rows for sampling in self._samplings())
        return min(max_sequences(self.configuration, device), max(1, samples))

    def _plan(self, asked: list[PendingProblem], tree: PrefixTree) -> SharingPlan:
        plan = make_plan(
            tree,
            [item.request.prompt_token_ids for item in asked],
            [item.problem.id for item in asked],
            *extents([item.problem.sampling for item in asked], self.model.context_length),
            num_blocks=self.engine.stats.blocks_total,
            kv_bytes_per_token=self.blocks.token_bytes,
            max_sequences=self.engine.slots,
            rule=self.configuration.sampling.rule,
            width=self.blocks.blocks_per_full,
            state_bytes=self.model.state_bytes,
            state_slots=self.engine.stats.states_total or None,
        )
        return replace(
            plan,
            ranks=self.engine_spec.ranks,
            weights_bytes=self.model.weights_bytes,
            saved_by_order=None if self.share else saved_by_order(self.workload),
            golds=sum(item.problem.gold is not None for item in asked)
            if self.workload.golds
            else None,
        )

    def _samplings(self) -> list[Sampling]:
        """How each prompt in the tree is sampled, in the tree's order."""
        pairs = zip(self.workload.problems, self.prompts, strict=True)
        return [problem.sampling for problem, prompt in pairs if prompt]

    def _tree_of_asked(self, asked: list[PendingProblem]) -> PrefixTree:
        if len(asked) == sum(1 for prompt in self.prompts if prompt):
            return self.tree
        requests = [item.request for item in asked]  # the others cannot run
        return self._tree_of([(r.prompt_token_ids, r.splits or (), r.alone) for r in requests])

    def _tree_of(self, paths: Sequence[tuple[Sequence[int], Sequence[int], int]]) -> PrefixTree:
        """The tree of prompts of which it is known where each is split, and which are alone."""
        prompts, splits, alone = ([path[i] for path in paths] for i in range(3))
        size = self.configuration.machine.block_size
        return PrefixTree.build(prompts, size, splits=splits, alone=alone)  # type: ignore[arg-type]

    def _start_seconds(self) -> dict[str, float]:
        """What the start took, by part: of engines in other processes, the slowest."""
        seconds = START.seconds()
        slowest = getattr(self.engine, "slowest_start", None)
        return seconds if slowest is None else with_engine(seconds, slowest)
