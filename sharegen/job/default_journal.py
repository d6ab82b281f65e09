"""Where a job's journal is when nobody says: the same job finds it again.

What a journal is named by follows content, so that a model or the package may move. One that was
renamed, or begun under a name that an earlier version gave, is found by what it holds.
"""

from __future__ import annotations

import glob
import hashlib
import json
from pathlib import Path
from typing import Any

from sharegen.errors import JournalError
from sharegen.job.job_content import JobContent
from sharegen.results.journal.family import family
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.identity import identity_of
from sharegen.results.journal.run_file import ADOPT

_FOLDER = Path("runs")
_DIGITS = 8
_CONTENT = ("few_shot", "document", "chat_template")  # of what is in files beside the dataset


def default_output(content: JobContent, with_folder: bool = False) -> Path:
    """Return `runs/<recipe>-<hash>.jsonl`, the name of a new journal.

    The dataset's name counts, though no part of the identity, and so does what is taken from it:
    the rows of two datasets should not meet in one journal unasked.

    with_folder: whether the folder of a dataset's file counts, too.
    """
    configuration, fingerprints = content.configuration, content.workload.fingerprints
    dataset = configuration.dataset
    name = [
        identity_of(configuration.identity),
        content.weights or [configuration.model, configuration.adapter, configuration.revision],
        _without_folder(dataset.model_dump(exclude_defaults=True), "source"),
        _without_folder(configuration.few_shot.model_dump(exclude_defaults=True), "file"),
        {name: fingerprints[name] for name in _CONTENT if name in fingerprints},
        configuration.chat.date and str(configuration.chat.date),
        dataset.source if with_folder else None,
    ]
    text = json.dumps(name, sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=_DIGITS // 2).hexdigest()
    return _FOLDER / f"{configuration.recipe}-{digest}.jsonl"


def find_journal(content: JobContent) -> FoundJournal:
    """The job's journal: under its name, or whichever has samples of these rows by this job.

    Where a dataset of the same name in another folder has the name, the folder counts.
    """
    named = FoundJournal(default_output(content), ADOPT)
    there = next((path for path in family(named.path) if path.exists()), None)
    if there is not None:
        first = named if there == named.path else FoundJournal(there, ADOPT)
        if not _is_of_another_file(first, content):
            return named
    recipe = glob.escape(content.configuration.recipe)
    earlier = sorted(_FOLDER.glob(f"{recipe}-{'[0-9a-f]' * _DIGITS}.jsonl"))
    for journal in (FoundJournal(path, ADOPT) for path in earlier):
        if _is_of(journal, content):
            return journal
    if there is None:
        return named
    return FoundJournal(default_output(content, with_folder=True), ADOPT)


def _without_folder(section: dict[str, Any], key: str) -> dict[str, Any]:
    """The section with paths cut to their last name, and without what only extends a journal."""
    section.pop("limit", None)
    section.pop("document", None)  # whose content counts, wherever it lies
    if key in section and Path(section[key]).is_absolute():
        section[key] = Path(section[key]).name
    return section


def _is_of_another_file(journal: FoundJournal, content: JobContent) -> bool:
    """Whether a journal is of this job with another file's rows, of which it has samples.

    Not where the file is the same: rows of it that changed are refused, and not sampled anew.
    """
    try:
        recorded = journal.run
        if recorded is None or not any(record.is_sample for record in journal.records()):
            return False
        dataset = recorded.extent.get("dataset") or {}
    except JournalError:  # which is told where it is gone on with
        return False
    is_elsewhere = dataset.get("source") != content.configuration.dataset.source
    return is_elsewhere and not _is_of(journal, content)


def _is_of(journal: FoundJournal, content: JobContent) -> bool:
    try:
        recorded = journal.run
        if recorded is None or recorded.conversion:
            return False
        if recorded.identity != content.before_loading(recorded).identity:
            return False
        rows = {problem.id: problem for problem in content.workload.problems}
        return any(
            record.row in (rows[record.problem_id].row_hash, rows[record.problem_id].prompt_hash)
            for record in journal.records()
            if record.is_sample and record.problem_id in rows
        )
    except JournalError:  # broken, and not asked for by name
        return False
