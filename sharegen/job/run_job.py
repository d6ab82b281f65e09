"""One job from recipe to finished JSONL.

A complete job is summed up again from its journal alone, without loading a model.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sharegen.common.shard import Shard
from sharegen.common.start_clock import START
from sharegen.errors import CapacityError, DataError, UsageError
from sharegen.job.beside import (
    extent_of,
    held,
    journals_beside,
    log_discarded,
    refuse_other_shards,
    refuse_overwriting,
    refuse_writers,
)
from sharegen.job.default_journal import find_journal
from sharegen.job.engines import begun_early
from sharegen.job.interrupt import Interrupted, interrupts
from sharegen.job.job_content import JobContent
from sharegen.job.judging import check_execution, judging
from sharegen.job.loaded import LoadedJob
from sharegen.job.outcome import JobOutcome, outcome_on_record
from sharegen.job.recording import refuse_unknown_fields
from sharegen.job.reordering import load_asked
from sharegen.job.share import share_of
from sharegen.job.template_clock import clock_of
from sharegen.job.watcher import Watcher
from sharegen.results.journal.family import journal_path
from sharegen.results.journal.journal_family import JournalFamily
from sharegen.results.journal.output import refuse_what_is_no_file
from sharegen.results.scoring.score_file import discard_scores
from sharegen.workload.configuration import Configuration

if TYPE_CHECKING:
    from sharegen.results.sandbox.system import Isolation


def run_job(
    configuration: Configuration,
    output: Path | None = None,
    *,
    shard: Shard | None = None,
    overwrite: bool = False,
    adopt: bool = False,
    strict: bool = False,
    retry_failed: bool = False,
    verify: int | None = None,
    check_determinism: int | None = None,
    execute: Isolation | None = None,
    watcher: Watcher | None = None,
    command: str | None = None,
) -> JobOutcome:
    """Sample everything that the configuration asks and the journal does not have yet.

    output: the journal; by default where the same job always finds it.
    shard: the part of the job to do, into a journal of its own beside `output`.
    overwrite: start the journal anew. adopt: where no run file says what made the journal, take
        it to be of this job. strict: a bad row stops the job. retry_failed: samples that
        failed are drawn again.
    execute: the sandbox in which programs run to say which are right, where the rule asks that.
    verify: how many random steps to check against the model's own attention when all is drawn.
    check_determinism: how many finished samples to draw again in another batch, and to compare.
    command: what was typed, for the record.

    Raises a SharegenError for everything that is wrong with input, model, memory or journal, and
    Interrupted after Ctrl-C or SIGTERM; whatever was finished until then is in the journal.
    """
    if verify is not None and configuration.machine.tensor_parallel_size > 1:
        raise UsageError(
            "--verify computes steps anew with the whole model on one GPU: leave out "
            "--tensor-parallel-size, or --verify"
        )
    if verify is not None and configuration.machine.logprobs_mode != "raw_logprobs":
        raise UsageError(
            "--verify compares log-probabilities of the model's own distribution: leave out "
            "--logprobs-mode, or --verify"
        )
    START.begin()
    watcher = watcher or Watcher()
    check_execution(configuration, execute)
    path = output and journal_path(output, shard)
    if path is not None:
        refuse_what_is_no_file(path)
    with interrupts() as signals:
        try:
            workload = load_asked(configuration)
            refuse_unknown_fields(configuration, workload.problems)
            content = JobContent.of(configuration, workload)
            found = None
            if path is None:
                found = find_journal(content)
                path = journal_path(found.path, shard)
            if strict and workload.bad_rows:
                raise DataError(f"{workload.bad_rows[0].error} (--strict)")
            family = JournalFamily(path, found)
            clock = clock_of(configuration, None if overwrite else family)
            share = None if shard is None else share_of(configuration, workload, shard, clock)
            own = workload if share is None else share.workload
            content = replace(content, workload=own)
            own.name_odd_rows()
            if not overwrite:
                others = journals_beside(family, share)
                refuse_writers(family, share)
                complete = outcome_on_record(
                    content,
                    family.own,
                    others,
                    strict=strict,
                    retry_failed=retry_failed,
                    adopt=adopt,
                )
                if complete is not None and check_determinism is None:
                    return complete
                refuse_other_shards(family, share, content)
            samplings = [problem.sampling for problem in own.problems]
            is_named = path == output and not configuration.dataset.requests
            with (
                held(family, share, follow=is_named) as file,
                begun_early(configuration, samplings) as server,
            ):
                others = journals_beside(family, share)
                if overwrite:
                    refuse_overwriting(path, others)
                    log_discarded(family.own)
                files = (family.own, *others)
                extent = extent_of(share, None if overwrite else family.own)
                job = LoadedJob(
                    content, family.own, watcher, verify, share, others, server, clock,
                    check_determinism,
                )  # fmt: skip
                with (
                    closing(job),
                    job.open_journal(file, extent, overwrite, command, adopt) as journal,
                ):
                    if overwrite:
                        discard_scores(path)
                    with judging(files, journal.run, execute) as judge:
                        drawn = job.sample(journal, strict, retry_failed, signals, judge)
                    reading, prompts = content.reading, job.prompts
                    return JobOutcome(
                        path, journal.run, job.workload, drawn, files, reading, prompts
                    )
        except CapacityError as error:
            raise CapacityError(f"{error} (--kv-cache-memory, --max-tokens)") from None
        except KeyboardInterrupt:
            is_there = path is not None and path.exists()
            finished = f"what was finished is in {path}" if is_there else "nothing was sampled"
            raise Interrupted(
                f"interrupted: {finished}; run the same command again to continue"
            ) from None
        finally:
            START.end()
