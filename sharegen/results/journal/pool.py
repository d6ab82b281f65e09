"""Several journals as one: those of one and the same job are pooled, others stay separate.

A job may be done in shards, or the first thousand problems here and the rest there, and then votes
over all of them. Jobs that differ in model, prompts or seed are never mixed, but for seeds where
that is asked.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sharegen.common.log import log
from sharegen.errors import JournalError
from sharegen.results.journal.family import family
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.identity import differences
from sharegen.results.journal.keys import Key, Keys
from sharegen.results.journal.record import Record, RecordReader
from sharegen.results.journal.rereading import Others, Rereading, golds_differ, readings_of
from sharegen.results.journal.run_file import RunFile, shown
from sharegen.results.journal.totals import together

_SEED = "sampling.seed"


@dataclass(frozen=True)
class Entry:
    """A record and where it is.

    record: with the problem id and sample index that it has among all; key: as its file has them.
    repeats: whether an earlier file has the sample too.
    """

    path: Path
    key: Key
    record: Record
    repeats: bool = False


class Pool:
    """The journals of one job, read as one.

    journals: in the order in which they are read; files: their paths; runs: what made each, None
        without a run.json.
    readings: how the answers in each are read; None leaves them as the lines have them.
    duplicates: after reading, per file the numbers of the lines that were left out because their
        key came before in that file.
    """

    def __init__(self, journals: Sequence[FoundJournal]):
        self.journals = list(journals)
        self.files = [journal.path for journal in journals]
        self.runs = [journal.run for journal in journals]
        self.readings = readings_of(self.runs)
        self.duplicates: dict[Path, list[int]] = {}

    def read_by(self, reading: Rereading) -> Pool:
        """Return the same journals, with their answers read so, and its gold answers where it has
        any.
        """
        known = ((found and found.golds) or {} for found in self.readings)
        self.readings = [replace(reading, golds={**golds, **reading.golds}) for golds in known]
        return self

    @property
    def name(self) -> str:
        if len(self.files) == 1:
            return str(self.files[0])
        return ", ".join(dict.fromkeys(str(journal.whole) for journal in self.journals))

    @property
    def path(self) -> Path:
        """The one journal, or what its shards' have in common: a name for all in a command."""
        return self.files[0] if len(self.files) == 1 else self.journals[0].whole

    @property
    def run(self) -> RunFile | None:
        """What made the journals, how all of it went together, and how answers are read."""
        known = [run for run in self.runs if run is not None]
        if not known:
            return None
        reading = next((found for found in self.readings if found is not None), None)
        return together(known) if reading is None else reading.shown(together(known))

    @property
    def golds_differ(self) -> bool:
        """Whether its lines have gold answers that were looked for in different ways."""
        return golds_differ(self.runs)

    def records(self) -> Iterator[Record]:
        """Every sample once, then those that failed everywhere, then the bad rows without any.

        Raises JournalError as `read` does.
        """
        return (entry.record for entry in self.entries() if not entry.repeats)

    def entries(self) -> Iterator[Entry]:
        """Yield what `records` does, with the samples that an earlier file has too, which is
        logged.

        Rows that differ are two problems though their ids are equal, as in two halves of a dataset
        that both count from 0: the later one gets its file's name. Samples of another seed are
        further ones of their problem.
        """
        seen = Keys()
        known: dict[str, tuple[Record, Path]] = {}  # the first of each problem, and its job's file
        bad_rows: list[Entry] = []
        failed: dict[Key, Entry] = {}  # until one of the key is drawn
        offset = most = 0
        seed = _seed_of(self.runs[0]) if self.runs else ""
        others = Others()
        for journal, run, reading in zip(self.journals, self.runs, self.readings, strict=True):
            path, whole = journal.path, journal.whole
            if _seed_of(run) != seed:
                seed, offset = _seed_of(run), most
            repeated, renamed = 0, set()
            reader = journal.records()
            for record in _now(reader, journal, reading, others):
                if record.sample is None:
                    bad_rows.append(Entry(path, record.key, record))
                    continue
                first, home = known.setdefault(record.problem_id, (record, whole))
                name = record.problem_id
                if home != whole and _is_other_row(first, record):
                    name = f"{name} ({whole})"
                    renamed.add(name)
                pooled = record
                if offset or name != record.problem_id:
                    pooled = replace(record, problem_id=name, sample=record.sample + offset)
                most = max(most, record.sample + offset + 1)
                repeats = pooled.key in seen
                if not (pooled.is_drawn or repeats):
                    failed.setdefault(pooled.key, Entry(path, record.key, pooled))
                    continue
                failed.pop(pooled.key, None)
                repeated += repeats
                seen.add(pooled.key)
                yield Entry(path, record.key, pooled, repeats)
            self.duplicates[path] = reader.duplicates
            if repeated:
                samples = "1 sample" if repeated == 1 else f"{repeated:,} samples"
                said = "is" if repeated == 1 else "are"
                log(f"{path}: {samples} {said} in an earlier journal, too: counted once")
            if renamed:
                log(
                    f"{path}: {len(renamed):,} problems have the ids of other rows in an earlier "
                    f"journal: here they are {min(renamed)!r} and so on"
                )
        if others.are_any:
            log(f"{self.name}: {others.in_words()}")
        yield from failed.values()
        yield from (entry for entry in bad_rows if entry.key.problem_id not in known)


def pool(files: Iterable[Path], *, names: bool = True, seeds: bool = False) -> list[Pool]:
    """Group files, each with its shards', by the job that made them.

    A file without a run.json is a pool of its own. names: whether journals of one job are one
    under different names too, as halves of a dataset are; those of shards are, whatever folders
    they are in. seeds: whether jobs that differ in the seed alone are one.
    """
    groups: dict[str, list[FoundJournal]] = defaultdict(list)
    of_shards: dict[str, Path] = {}  # the journal of each name, where its first shard lies
    for path in dict.fromkeys(journal for file in files for journal in family(file)):
        journal = FoundJournal(path)
        run, whole = journal.run, journal.whole
        if journal.shard is not None:
            whole = of_shards.setdefault(whole.name, whole)
        name = "" if names else f"{whole}: "
        group = name + _identity(run, seeds) if run else f"without: {path}"
        groups[group].append(journal)
    _log_other_jobs(groups.values(), asked=seeds)
    pools = []
    for members in groups.values():
        by_seed: dict[str, list[FoundJournal]] = defaultdict(list)
        for journal in members:
            by_seed[_seed_of(journal.run)].append(journal)
        found = Pool([journal for of_seed in by_seed.values() for journal in of_seed])
        if len(by_seed) > 1:
            log(f"{found.name}: samples of seeds {_listed(by_seed)} are pooled, in this order")
        _log_shards(found)
        pools.append(found)
    return pools


def one_job(path: Path) -> Pool:
    """The journal at `path` with its shards'. Raises JournalError where these are of other jobs."""
    first, *others = pool([path])
    for other in others:
        if first.run is None or other.run is None:
            bare = (first if first.run is None else other).files[0]
            raise JournalError(f"{bare}: has no {shown(bare)}: rename or remove it")
        differ = differences(first.run.identity, other.run.identity)
        raise JournalError(
            f"{other.files[0]}: comes from another configuration than {first.files[0]}: "
            f"{'; '.join(differ)}: rename one of them"
        )
    return first


def _now(
    reader: RecordReader, journal: FoundJournal, reading: Rereading | None, others: Others
) -> Iterator[Record]:
    """The records of a journal as they are read now; what is read otherwise is counted."""
    if reading is None:
        return reader
    own = journal.own_lines
    is_own = own is not None and own.section == reading.section
    is_read = (lambda: own is not None and reader.end > own.start) if is_own else None
    return others.noted(reading.read(reader, is_read))


def _is_other_row(first: Record, record: Record) -> bool:
    if first.prompt_hash != record.prompt_hash:
        return True
    known = first.row_hash is not None and record.row_hash is not None
    return known and first.row_hash != record.row_hash


def _seed_of(run: RunFile | None) -> str:
    return "" if run is None else json.dumps(run.identity.get(_SEED))


def _identity(run: RunFile, seeds: bool) -> str:
    identity = {k: v for k, v in run.identity.items() if not (seeds and k == _SEED)}
    return json.dumps(identity, sort_keys=True)


def _name(journal: FoundJournal) -> str:
    """The job's name: a shard's has no folder, since each may have been computed elsewhere."""
    return str(journal.path) if journal.shard is None else journal.whole.name


def _log_other_jobs(groups: Iterable[Sequence[FoundJournal]], asked: bool) -> None:
    """Say of shards of one name, and of all journals where it is asked that they be one, why they
    are not."""
    first: dict[str, tuple[Path, RunFile]] = {}
    for members in groups:
        for journal in members:
            path, run = journal.path, journal.run
            if run is None or not (asked or journal.shard):
                continue
            known, other = first.setdefault("" if asked else _name(journal), (path, run))
            differ = differences(other.identity, run.identity)
            if any(not (asked and each.startswith(_SEED)) for each in differ):
                log(
                    f"{path}: is counted separately, because its configuration differs from "
                    f"that of {known}: {'; '.join(differ)}"
                )
                break


def _log_shards(pool: Pool) -> None:
    """Say where shards are missing, or do not belong to one cut."""
    parts: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    cuts: dict[tuple[str, int], set[str]] = defaultdict(set)
    whole = {(_seed_of(journal.run), journal.path.name) for journal in pool.journals}
    jobs: dict[str, Path] = {}
    for journal in pool.journals:
        shard, run = journal.shard, journal.run
        if shard is None or (_seed_of(run), journal.whole.name) in whole:
            continue
        job = f"{_seed_of(run)} {_name(journal)}"
        jobs.setdefault(job, journal.whole)
        parts[job][shard.count].add(shard.index)
        recorded = run.extent.get("shard") if run else None
        if isinstance(recorded, dict):
            cuts[job, shard.count].add(str(recorded.get("cut")))
    for job, counts in parts.items():
        if len(counts) > 1:
            log(f"{jobs[job]}: shards of {_listed(sorted(counts))} are read together")
        for count, present in counts.items():
            missing = sorted(set(range(1, count + 1)) - present)
            if missing and len(counts) == 1:
                shards = "shard" if len(missing) == 1 else "shards"
                log(f"{jobs[job]}: without {shards} {_listed(missing)} of {count}")
            if len(cuts[job, count]) > 1:
                log(
                    f"{jobs[job]}: its shards of {count} were not cut alike, by another --limit, "
                    "--samples or dataset: problems may be missing"
                )


def _listed(values: Iterable[Any]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last
