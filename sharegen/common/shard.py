"""Which part of a job a process does: `--shard 2/8`, or a task of a Slurm job array."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sharegen.errors import UsageError

_NUMBER = "[0-9]{1,6}"  # a million parts are a mistake


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count`; the first is 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] = os.environ) -> Shard:
        """Read it from `I/N`, or from the environment of a Slurm array's task where it is `slurm`.

        Raises UsageError for anything else.
        """
        if text == "slurm":
            return cls._of_slurm(environment)
        match = re.fullmatch(f"({_NUMBER})/({_NUMBER})", text)
        if match is None:
            raise UsageError(
                f"--shard {text}: give the part and how many there are, as 1/8, or slurm"
            )
        index, count = int(match[1]), int(match[2])
        if not 1 <= index <= count:
            raise UsageError(f"--shard {text}: parts count from 1, and the last of 8 is 8/8")
        return cls(index, count)

    @classmethod
    def _of_slurm(cls, environment: Mapping[str, str]) -> Shard:
        """The ids must be 0 or 1 and on: with others the array may be some tasks of a larger one,
        submitted again, and its number of tasks is not the number of parts."""
        names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "COUNT", "MIN", "MAX")]
        missing = next((name for name in names if name not in environment), None)
        if missing is not None:
            raise UsageError(
                f"--shard slurm: {missing} is not set, so this is not a task of a job array: "
                "submit it with sbatch --array=1-N, or give --shard I/N"
            )
        odd = next((name for name in names if not re.fullmatch(_NUMBER, environment[name])), None)
        if odd is not None:
            raise UsageError(f"--shard slurm: {odd} is {environment[odd]!r}: give --shard I/N")
        task, count, first, last = (int(environment[name]) for name in names)
        if first > 1 or last - first + 1 != count or not first <= task <= last:
            raise UsageError(
                f"--shard slurm: the array's {count} tasks are {first} to {last}, and do not count "
                "from 0 or 1 without gaps: give --shard $SLURM_ARRAY_TASK_ID/N with the N of the "
                "whole job"
            )
        return cls(task - first + 1, count)
