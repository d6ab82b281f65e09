"""What counts of journals whose problems were stopped early.

No line says so: which rule it was is in the run.json, and what it decided follows from the rule and
the records, read in the order of their indices (deciding.py). Samples beyond are on record, for
they were in flight when their problem was decided, and count for nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from sharegen.common.log import log
from sharegen.common.stop_rule import StopRule
from sharegen.errors import UsageError
from sharegen.results.answers.equality import is_right
from sharegen.results.answers.normal import normalise
from sharegen.results.journal.family import whole_path
from sharegen.results.journal.pool import Pool
from sharegen.results.journal.record import Key, Record
from sharegen.results.journal.run_file import RunFile
from sharegen.results.scoring.score_file import scores_path
from sharegen.results.scoring.scores import SampleKey, read_scores
from sharegen.results.stopping.deciding import Deciding, Standing, least

ProblemKey: TypeAlias = "tuple[str, str | None]"
"""Problem id and prompt hash."""


@dataclass
class Stopped:
    """The problems of a job under a rule.

    samples: of a problem at most. problems: how far each is that has samples. noted: samples that
    have come, counted or not.
    """

    rule: StopRule
    samples: int
    problems: dict[ProblemKey, Deciding] = field(default_factory=dict)
    noted: int = 0

    @classmethod
    def of(cls, found: Pool) -> Stopped | None:
        """What the journals of one job say; None where no rule stopped them.

        Programs without any scores count all, and that is logged. Raises UsageError for samples
        of several seeds, or that were stopped differently.
        """
        rule = _rule_of(found)
        if rule is None:
            return None
        if _needs_tests(rule[0], found) and not any(
            map(Path.exists, map(scores_path, found.files))
        ):
            log(
                f"{found.name}: stopped by {rule[0]}, and which programs are right is not known: "
                f"all samples are taken; first `sharegen score {found.path} --execute`"
            )
            return None
        return cls.read(*rule, found)

    @classmethod
    def read(
        cls,
        rule: StopRule,
        samples: int,
        found: Pool,
        known: Container[Key] | None = None,
        of: Container[str] | None = None,
    ) -> Stopped:
        """What the journals come to under a rule.

        known: the samples that are read; of: the problems, by id; by default all. A program that
        has not been scored is not read either: what it is worth is not known.
        """
        stopped = cls(rule, samples)
        entries = [entry for entry in found.entries() if entry.record.is_sample]
        verdicts: dict[Path, Mapping[SampleKey, bool]] = {}
        by_tests = _needs_tests(rule, found)
        for path in found.files if by_tests else ():
            texts = {
                (e.key.problem_id, e.key.sample or 0): e.record.completion
                for e in entries
                if e.path == path
            }
            scores = read_scores(path, texts) or {}
            verdicts[path] = {key: score.passed for key, score in scores.items()}
        for entry in entries:
            if entry.repeats or (known is not None and entry.record.key not in known):
                continue
            if of is not None and entry.record.problem_id not in of:
                continue
            right = None
            if by_tests and entry.record.is_drawn:
                right = verdicts[entry.path].get((entry.key.problem_id, entry.key.sample or 0))
                if right is None:
                    continue
            stopped.note(entry.record, right)
        return stopped

    def problem(self, record: Record) -> Deciding:
        """The decision on the record's problem so far."""
        return self.deciding((record.problem_id, record.prompt_hash))

    def deciding(self, problem: ProblemKey) -> Deciding:
        if problem not in self.problems:
            self.problems[problem] = Deciding(self.rule, self.samples)
        return self.problems[problem]

    def note(self, record: Record, right: bool | None = None) -> bool:
        """A sample has come; whether its problem is further by it.

        right: what its tests say; None where its answer does.
        """
        answer = answer_of(record)
        if right is None and self.rule.kind == "right":
            gold = record.gold
            right = answer is not None and gold is not None and is_right(record.answer or "", gold)
        assert record.sample is not None
        self.noted += record.sample < self.samples
        return self.problem(record).note(record.sample, answer, bool(right))

    def counts(self, record: Record) -> bool:
        """Whether a record is one of those that decided, or may yet; a bad row stays one."""
        return record.sample is None or record.sample < self.problem(record).counted

    @property
    def beyond(self) -> int:
        """Samples on record that count for nothing, unless they may yet."""
        return self.noted - sum(deciding.counted for deciding in self.problems.values())

    @property
    def decided(self) -> int:
        """The problems that need no more samples."""
        return sum(deciding.is_decided for deciding in self.problems.values())

    def in_words(self) -> str:
        """What the rule left of the samples that were asked, in a line."""
        counts = sum(deciding.counted for deciding in self.problems.values())
        asked = self.samples * len(self.problems)
        line = (
            f"stopped by {self.rule.named}: {counts:,} of {asked:,} samples count, "
            f"{self.decided:,} of {len(self.problems):,} problems are decided"
        )
        if self.beyond:
            line += f"; {self.beyond:,} more were in flight and count for nothing"
        return line

    @property
    def first(self) -> int:
        """Samples that every problem has, whatever they say: as many as it takes at the least.

        What is estimated of these is unbiased, as of any number that is fixed beforehand.
        """
        return least(self.rule, self.samples, Standing())

    @property
    def enough(self) -> int | None:
        """Right samples with which a problem ends; None under a rule that reads the votes."""
        return int(self.rule.value or 0) if self.rule.kind == "right" else None


def counted(records: Iterable[Record], stopped: Stopped | None) -> Iterator[Record]:
    """The records that count."""
    return (record for record in records if stopped is None or stopped.counts(record))


def answer_of(record: Record) -> str | None:
    """The answer as it is counted; None for a sample that does not vote."""
    return None if record.answer is None else normalise(record.answer) or None


def _rule_of(found: Pool) -> tuple[StopRule, int] | None:
    """The rule of the journals, and how many samples it stops at most.

    A run of the whole job knows those of its shards, so that what it says counts for all.
    """
    runs = dict(zip(found.files, found.runs, strict=True))
    rules = {path: _rule_in(run) for path, run in runs.items()}
    if not any(rules.values()):
        return None
    seeds = {run.identity.get("sampling.seed") for run in runs.values() if run is not None}
    if len(seeds) > 1:
        raise UsageError(
            f"{found.name}: samples of several seeds, which `--stop-when` stopped, are no longer "
            "draws of one kind: take each journal by itself"
        )
    wholes = {rule for path, rule in rules.items() if path == whole_path(path)}
    found_rules = wholes if len(wholes) == 1 else set(rules.values())
    if len(found_rules) > 1:
        said = " and ".join(sorted(_in_words(rule) for rule in found_rules))
        raise UsageError(
            f"{found.name}: its journals were stopped differently ({said}): run them again with "
            "the same --stop-when and --samples"
        )
    return next(iter(found_rules))


def _rule_in(run: RunFile | None) -> tuple[StopRule, int] | None:
    sampling = run.settings.get("sampling") if run is not None else None
    if not isinstance(sampling, dict) or not isinstance(sampling.get("stop_when"), str):
        return None
    return StopRule.parse(sampling["stop_when"]), int(sampling["samples"])


def _in_words(rule: tuple[StopRule, int] | None) -> str:
    return "none" if rule is None else f"{rule[0]} of {rule[1]:,}"


def _needs_tests(rule: StopRule, found: Pool) -> bool:
    """Whether the tests of programs say what is right, and not gold answers."""
    dataset = found.run.settings.get("dataset") if found.run is not None else None
    has_programs = isinstance(dataset, dict) and bool(dataset.get("rows"))
    return rule.kind == "right" and has_programs
