"""Journals beside a run's own that may hold samples of the same problems: a sample is drawn once.

A run of the whole job takes what the shards have, a shard what a run of all or a cut into another
number of shards had; shards of one cut have no problem in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sharegen.common.files import make_folders, replace_file
from sharegen.common.log import log
from sharegen.errors import JournalError
from sharegen.job.job_content import JobContent
from sharegen.job.share import Share
from sharegen.results.journal.appended import AppendedFile
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.journal import refuse_other_job
from sharegen.results.journal.journal_family import JournalFamily
from sharegen.results.journal.keys import Key
from sharegen.results.journal.lock import is_held, starting
from sharegen.results.journal.places import hidden
from sharegen.results.journal.run_file import BESIDE, BrokenRunFile, RunFile
from sharegen.results.scoring.score_file import scores_path


def journals_beside(family: JournalFamily, share: Share | None) -> list[FoundJournal]:
    """The other journals that may hold samples of what a run asks."""
    return [
        journal
        for journal in family.others()
        if journal.size and (_is_mixed(journal) or not _is_of_cut(journal, share))
    ]


def refuse_writers(family: JournalFamily, share: Share | None) -> None:
    """Raises JournalError where another process draws what may be the same samples."""
    if family.others():
        with starting(family.whole):  # or who starts might be refused because this one asks
            _refuse_writers(family, share)


def _refuse_writers(family: JournalFamily, share: Share | None) -> None:
    for journal in family.others():
        if not _draws_of_cut(journal, share) and is_held(journal.path):
            raise JournalError(
                f"{journal.path}: another process is writing it, and both would draw the same "
                "samples: wait for that run to end, or choose another --output"
            )


@contextmanager
def held(family: JournalFamily, share: Share | None, follow: bool) -> Iterator[AppendedFile]:
    """Hold a run's journal, while nobody else writes one that may have the same samples.

    follow: whether the journal may be a symbolic link. Where nothing is written to a journal that
    was not there, there is none afterwards. Raises JournalError for a journal beside it that
    another process writes. Who comes later is refused: each holds its own before it looks at the
    others'.
    """
    note = _note_path(family.own.path)
    with suppress(OSError):  # which opening the file tells
        make_folders(note.parent)
    with starting(family.whole):
        file = AppendedFile.open(family.own.path, follow=follow)
        try:
            _note_cut(note, share)
            _refuse_writers(family, share)
        except BaseException:
            file.discard()
            raise
    try:
        yield file
    finally:
        with suppress(OSError):
            note.unlink(missing_ok=True)
        file.discard()


def extent_of(share: Share | None, own: FoundJournal | None) -> dict[str, Any]:
    """What the run.json of a run's journal says of its share of the job.

    own: the journal, None where it is started anew. Where the job was cut otherwise before, as with
    fewer rows, it has samples of problems that are another shard's now, and is `mixed`.
    """
    if share is None:
        return {}
    is_mixed = False
    if own is not None and own.size:
        try:
            is_mixed = _is_mixed(own) or not _is_of_cut(own, share)
        except BrokenRunFile:  # adopted
            is_mixed = True
    return {"shard": share.extent["shard"] | ({"mixed": True} if is_mixed else {})}


def refuse_other_shards(family: JournalFamily, share: Share | None, content: JobContent) -> None:
    """Raises JournalError where a shard of the same cut, with samples, is of another job."""
    for journal in family.others():
        if share is None or not _is_of_cut(journal, share) or journal.run is None:
            continue
        _is_of_job(journal, content.before_loading(journal.run))


def refuse_overwriting(path: Path, others: Sequence[FoundJournal]) -> None:
    """Raises JournalError where `--overwrite` would leave samples that count as this run's."""
    if others:
        raise JournalError(
            f"{others[0].path}: has samples of the same job, which --overwrite of {path} would "
            "leave: remove it with its run.json, or choose another --output"
        )


def log_discarded(journal: FoundJournal) -> None:
    """Log what `--overwrite` costs, while Ctrl-C still keeps it."""
    if not journal.size:
        return
    what = f"{journal.size:,} bytes that are not samples"
    with suppress(JournalError):
        count = len(journal.on_record().drawn)
        what = "1 sample" if count == 1 else f"{count:,} samples"
    if scores_path(journal.path).exists():
        what += " and their scores"
    log(f"--overwrite: {journal.path}: {what} will be discarded once the model is loaded")


def finished_beside(
    journals: Sequence[FoundJournal], content: JobContent, asked: RunFile, retry_failed: bool
) -> Iterator[Key]:
    """The samples on record there; those that failed count unless they are to be drawn again.

    asked: the identity of what is being run. Raises JournalError for a journal of another job, and
    where a row has changed since it was sampled.
    """
    for journal in journals:
        if journal.run is None:
            raise JournalError(f"{journal.path}: exists without its run.json: {BESIDE}")
        if _is_of_job(journal, asked):
            found = journal.on_record()
            yield from found.drawn if retry_failed else found.finished
            content.refuse_changed_rows(journal.path, found.rows)
            content.refuse_changed_texts(journal.path, found.texts)


def _is_of_job(journal: FoundJournal, asked: RunFile) -> bool:
    """Whether the journal is of this job; a journal of another job with samples is refused."""
    assert journal.run is not None
    try:
        refuse_other_job(journal.path, journal.run, asked, BESIDE)
    except JournalError:
        if journal.on_record().drawn:
            raise
        return False
    return True


def _is_of_cut(journal: FoundJournal, share: Share | None) -> bool:
    """Whether the journal is a shard's of the same cut; a journal without a cut counts as one."""
    shard = journal.shard
    if share is None or shard is None or shard.count != share.shard.count:
        return False
    if journal.run is None:
        return True
    recorded = journal.run.extent.get("shard")
    return isinstance(recorded, dict) and recorded.get("cut") == share.cut


def _draws_of_cut(journal: FoundJournal, share: Share | None) -> bool:
    """Whether its writer draws a shard of the same cut, which is noted before the model loads."""
    shard = journal.shard
    if share is None or shard is None or shard.count != share.shard.count:
        return False
    with suppress(OSError):
        return _note_path(journal.path).read_text() == share.cut
    return _is_of_cut(journal, share)


def _is_mixed(journal: FoundJournal) -> bool:
    """Whether a shard's journal has samples of problems that are another's by the present cut."""
    recorded = None if journal.run is None else journal.run.extent.get("shard")
    return isinstance(recorded, dict) and bool(recorded.get("mixed"))


def _note_cut(path: Path, share: Share | None) -> None:
    with suppress(OSError):  # the run.json says it, a little later
        if share is not None:
            replace_file(path, share.cut.encode())


def _note_path(journal: Path) -> Path:
    return hidden(journal.with_name(journal.name + ".cut"))
