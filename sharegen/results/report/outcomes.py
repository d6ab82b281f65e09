"""A journal with its verdicts, problem by problem: all that a report is made of.

A verdict comes from the scores of the journal where there are any, else from comparing the
sample's answer with the gold answer, as `sharegen score` does.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from sharegen.errors import DataError
from sharegen.results.answers.equality import equality_used, is_right
from sharegen.results.answers.normal import normalise
from sharegen.results.journal.pool import Pool, one_job, pool
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile
from sharegen.results.scoring.scores import SampleKey, ScoreLine, read_scores
from sharegen.results.scoring.vote import natural_order
from sharegen.results.stopping.stopped import Stopped


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion and what is known about it.

    key: the normalised answer, under which it votes; None where it does not vote.
    right: None where nothing says so (no gold answer, not scored, unscorable).
    """

    record: Record
    key: str | None
    right: bool | None
    score: ScoreLine | None

    @property
    def index(self) -> int:
        assert self.record.sample is not None
        return self.record.sample


@dataclass(frozen=True)
class ProblemOutcome:
    """One problem: its samples by index, its vote, its verdicts."""

    problem_id: str
    gold: str | None
    difficulty: str | None
    samples: tuple[Sample, ...]

    def first(self, samples: int) -> ProblemOutcome:
        """The problem as its first samples alone have it."""
        return replace(self, samples=tuple(s for s in self.samples if s.index < samples))

    @cached_property
    def judged(self) -> int:
        """Samples with a verdict."""
        return sum(sample.right is not None for sample in self.samples)

    @cached_property
    def right(self) -> int:
        """Samples that are right."""
        return sum(sample.right is True for sample in self.samples)

    @cached_property
    def votes(self) -> dict[str, int]:
        """Votes for every answer, the winner first; ties to the first by sample index."""
        keys = (sample.key for sample in self.samples)
        return dict(Counter(key for key in keys if key is not None).most_common())

    @cached_property
    def winner(self) -> str | None:
        return next(iter(self.votes), None)

    @cached_property
    def vote_right(self) -> bool | None:
        """Whether the vote is right; a problem with verdicts where nothing voted is wrong."""
        if self.winner is None:
            return False if self.judged else None
        return self.right_of(self.winner)

    def right_of(self, answer: str) -> bool | None:
        """Whether a normalised answer is right, as its first judged sample has it."""
        verdicts = (sample.right for sample in self.samples if sample.key == answer)
        return next((right for right in verdicts if right is not None), None)

    @cached_property
    def margin(self) -> float | None:
        """The winner's lead over the runner-up as a share of all votes; None without votes."""
        first, second, *_ = [*self.votes.values(), 0, 0]
        return (first - second) / sum(self.votes.values()) if first else None


@dataclass(frozen=True)
class Run:
    """One journal: its problems in order, what made it, how it went.

    notes: what a reader of the numbers must know, a sentence each. stopped: the rule that stopped
    it, if one did: only the samples that count are here.
    """

    name: str
    path: Path
    outcomes: tuple[ProblemOutcome, ...]
    bad_rows: int
    file: RunFile
    notes: tuple[str, ...] = field(default=())
    stopped: Stopped | None = None

    @cached_property
    def fixed(self) -> tuple[ProblemOutcome, ...]:
        """The problems with the samples that each has whatever they say: no biased choice."""
        if self.stopped is None:
            return self.outcomes
        return tuple(outcome.first(self.stopped.first) for outcome in self.outcomes)

    @property
    def samples(self) -> Iterable[Sample]:
        return (sample for outcome in self.outcomes for sample in outcome.samples)

    @property
    def is_code(self) -> bool:
        """Whether its completions are programs, which scores alone can judge."""
        dataset = self.file.settings.get("dataset")
        return isinstance(dataset, dict) and bool(dataset.get("rows"))

    @cached_property
    def has_verdicts(self) -> bool:
        return any(outcome.judged for outcome in self.outcomes)

    @cached_property
    def has_votes(self) -> bool:
        return any(outcome.votes for outcome in self.outcomes)

    def with_difficulties(self, levels: Mapping[str, str]) -> Run:
        """The run with the difficulty of each problem, by id, where the scores do not say it."""
        outcomes = (
            replace(outcome, difficulty=outcome.difficulty or levels.get(outcome.problem_id))
            for outcome in self.outcomes
        )
        return replace(self, outcomes=tuple(outcomes))


def read_runs(
    paths: Iterable[Path], pooled: bool = False, reread: Callable[[Pool], Pool] | None = None
) -> list[Run]:
    """Every journal, named by its file, with as much of the path as tells them apart.

    pooled: journals of one job are one run, also where their names or seeds differ. reread: has the
    answers of a job read in another way.
    """
    pools = pool(paths, names=pooled, seeds=pooled)
    pools = [reread(found) for found in pools] if reread is not None else pools
    names = _names([found.path for found in pools])
    runs = [_read_run(found, name) for found, name in zip(pools, names, strict=True)]
    return [replace(run, notes=(*run.notes, *_strangeness(run, runs[0]))) for run in runs]


def _strangeness(run: Run, first: Run) -> Iterable[str]:
    mine, other = (each.file.fingerprints.get("dataset") for each in (run, first))
    if mine is not None and other is not None and mine != other:
        yield f"its dataset is not the one of {first.name}: problems are matched by id alone"


def read_run(path: Path, name: str) -> Run:
    """The journal at `path`, with its shards', and the scores and the run.json of each.

    Raises JournalError for what is no journal; DataError for one without samples, for a code
    journal without scores, and for scores of another journal.
    """
    return _read_run(one_job(path), name)


def _read_run(found: Pool, name: str) -> Run:
    path = found.path
    stopped = Stopped.of(found)
    problems: dict[tuple[str, str | None], list[Record]] = {}
    places: dict[Path, dict[SampleKey, Record]] = {journal: {} for journal in found.files}
    bad_rows = 0
    for entry in found.entries():
        record = entry.record
        if record.is_sample:
            if not entry.repeats and (stopped is None or stopped.counts(record)):
                problems.setdefault((record.problem_id, record.prompt_hash), []).append(record)
            key = (entry.key.problem_id, entry.key.sample or 0)
            places[entry.path][key] = record
        else:
            bad_rows += 1
    if not problems:
        held = f"holds {bad_rows} bad rows and no sample" if bad_rows else "is empty"
        raise DataError(f"{path}: the journal {held}: nothing to report; run the job first")
    file = found.run or RunFile()
    scores = _scores_of(places)
    outcomes = sorted(
        (_outcome(records, scores) for records in problems.values()),
        key=lambda outcome: natural_order(outcome.problem_id),
    )
    notes = tuple(_notes(outcomes, scores))
    if stopped is not None:
        notes = (*notes, stopped.in_words())
    run = Run(name, path, tuple(outcomes), bad_rows, file, notes, stopped)
    if scores is None and run.is_code:
        command = f"sharegen score {shlex.quote(str(path))} --execute"
        raise DataError(f"{path}: these programs have no scores yet: first `{command}`")
    return run


def _scores_of(
    places: Mapping[Path, Mapping[SampleKey, Record]],
) -> dict[SampleKey, ScoreLine] | None:
    """The scores of all journals by what a sample is called among all; None where there are none.

    places: of each journal its samples, by what they are called there.
    """
    scores: dict[SampleKey, ScoreLine] = {}
    for path, records in places.items():
        texts = {key: record.completion for key, record in records.items()}
        for key, score in (read_scores(path, texts) or {}).items():
            scores.setdefault((records[key].problem_id, records[key].sample or 0), score)
    return scores or None


def _outcome(records: list[Record], scores: dict[SampleKey, ScoreLine] | None) -> ProblemOutcome:
    records.sort(key=lambda record: record.sample or 0)
    first = records[0]
    gold = next((record.gold for record in records if record.gold is not None), None)
    right_answers: dict[str, bool] = {}
    samples = []
    difficulty = None
    for record in records:
        key = (normalise(record.answer) or None) if record.answer is not None else None
        score = scores.get((record.problem_id, record.sample or 0)) if scores is not None else None
        if scores is not None:
            right = score.verdict if score is not None else None
        elif gold is None:
            right = None
        elif key is None or record.answer is None:
            right = False
        else:
            if key not in right_answers:
                right_answers[key] = is_right(record.answer, gold)
            right = right_answers[key]
        difficulty = difficulty or (score.difficulty if score is not None else None)
        samples.append(Sample(record, key, right, score))
    return ProblemOutcome(first.problem_id, gold, difficulty, tuple(samples))


def _notes(
    outcomes: list[ProblemOutcome], scores: dict[SampleKey, ScoreLine] | None
) -> Iterable[str]:
    if scores is not None:
        samples = [sample for outcome in outcomes for sample in outcome.samples]
        failed = sum(not sample.record.is_drawn for sample in samples)
        if failed:
            yield f"{failed:,} of {len(samples):,} samples failed and are left out"
        missing = sum(s.score is None and s.record.is_drawn for s in samples)
        if missing:
            yield f"{missing:,} of {len(samples):,} samples are not scored yet and are left out"
        unscorable = sum(s.score is not None and s.right is None for s in samples)
        if unscorable:
            yield f"{unscorable:,} samples are unscorable and are left out"
        return
    answers = ((key, o.gold) for o in outcomes for key in o.votes if o.gold is not None)
    used = equality_used(answers)
    if used is not None:
        yield used


def _names(paths: list[Path]) -> list[str]:
    """File names without suffix, with as many parents as it takes to tell them apart."""
    parts = [
        (*map(_printable, path.resolve().parts[1:-1]), _printable(path.name.removesuffix(".jsonl")))
        for path in paths
    ]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return names


def _printable(name: str) -> str:
    """The text without surrogates, which stand for bytes that are not UTF-8."""
    return name.encode(errors="replace").decode()
