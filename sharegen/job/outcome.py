"""How a job came out, and whether that is on record already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sharegen.errors import DataError, JournalError, ModelError
from sharegen.job.plan import Plan
from sharegen.results.journal import OTHER
from sharegen.results.record import Key, read
from sharegen.results.run_file import RunFile, differences, run_file_path
from sharegen.workload.configuration import Configuration
from sharegen.workload.problem import Workload


@dataclass(frozen=True)
class Outcome:
    """A finished job: where its journal is, how it went, and what it asked.

    drawn: samples of this run; 0 when the journal had them all.
    """

    path: Path
    run: RunFile
    workload: Workload
    drawn: int

    @property
    def plan(self) -> Plan | None:
        """The sharing, as the journal's last run found it."""
        plan = self.run.stats.get("plan")
        return Plan.from_json(plan) if plan else None


def all_failed(key: Key, error: str | None) -> ModelError:
    """What a job ends with of which not one sample was drawn."""
    return ModelError(
        f"every sample failed: problem {key.problem_id}, sample {key.sample}: {error} "
        "(--retry-failed draws them again)"
    )


def outcome_on_record(
    configuration: Configuration,
    path: Path,
    workload: Workload,
    strict: bool,
    retry_failed: bool = False,
) -> Outcome | None:
    """The outcome from the journal alone, where it has every sample that is asked; else None.

    retry_failed: samples that failed are asked again. Raises JournalError where the journal comes
    from another configuration: known before a model is loaded; DataError for a bad row if strict;
    ModelError where every sample failed.
    """
    if not path.exists():
        return None
    recorded = RunFile.read(run_file_path(path), OTHER)
    if recorded is None:
        return None
    identity = configuration.identity
    if identity["dtype"] == "auto":  # whatever the model was loaded as then
        identity["dtype"] = recorded.configuration.get("dtype")
    fingerprints = {**recorded.fingerprints, **workload.fingerprints}
    asked = RunFile(configuration=identity, fingerprints=fingerprints)
    reader = read(path)
    records = {record.key: record.error for record in reader}
    if not records:
        return None
    differ = differences(recorded.identity, asked.identity)
    if differ and all(key.sample is None or error is not None for key, error in records.items()):
        return None  # nothing was drawn: the new configuration starts the journal anew
    if differ:
        raise JournalError(
            f"{path}: comes from another configuration: {'; '.join(differ)}: {OTHER}"
        )
    sampled = {key.problem_id for key in records if key.sample is not None}
    failed = {
        key.problem_id: error
        for key, error in records.items()
        if key.sample is None and key.problem_id not in sampled
    }
    unfit = failed.keys() - {bad.id for bad in workload.bad_rows}
    if unfit and recorded.extent.get("machine") != configuration.extent["machine"]:
        return None  # what did not fit the memory then may fit it now
    hashes = ((p.id, p.prompt_hash) for p in workload.problems if p.id not in failed)
    wanted = [
        Key(name, digest, sample)
        for name, digest in hashes
        for sample in range(configuration.sampling.samples)
    ]
    known = all(bad.id in failed for bad in workload.bad_rows)
    if not known or not all(key in records for key in wanted):
        return None
    undrawn = [key for key in wanted if records[key] is not None]
    if undrawn and retry_failed:
        return None
    if undrawn and len(undrawn) == len(wanted):
        raise all_failed(undrawn[0], records[undrawn[0]])
    for problem in workload.problems if strict else ():
        if problem.id in failed:
            raise DataError(f"problem {problem.id}: {failed[problem.id]} (--strict)")
    return Outcome(path, recorded, workload, drawn=0)
