"""Who is notified of a job's progress."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sharegen.job.sharing_plan import SharingPlan
from sharegen.results.screen.progress import EarlierProgress, Progress

if TYPE_CHECKING:
    from sharegen.engine.config import EngineStats


class Watcher:
    """Is notified of a job's progress; this one shows nothing."""

    def planned(self, plan: SharingPlan, path: Path, recorded: int) -> None:
        """The sharing is known; the journal at `path`, or one beside, has so many samples."""

    def sampling(
        self,
        stats: EngineStats,
        samples: int,
        problems: int,
        longest: int | None,
        before: EarlierProgress,
    ) -> AbstractContextManager[Progress | None]:
        """Note that so many samples and problems are about to be drawn; longest: tokens of a
        sample.

        before: what is on record of them already.
        """
        return nullcontext(None)

    def drawing_again(self, samples: int) -> None:
        """All is drawn; so many samples at most are about to be drawn again, and compared."""

    def verifying(self, steps: int) -> None:
        """All is drawn; so many steps are about to be computed by the model's own attention."""
