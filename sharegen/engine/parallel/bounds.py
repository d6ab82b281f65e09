"""How long a process is waited for: by default longer than any that works takes.

What is imported here is light: it is to run before the driver imports torch.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from sharegen.errors import UsageError

VARIABLE = "SHAREGEN_WORKER_TIMEOUT"
_SILENCE = 120.0  # seconds; a process that lives gives a sign each second
_START = 5  # times as long: imports from a slow disk come before the first sign
_STEP = 15  # times as long: a step may compile kernels


@dataclass(frozen=True)
class Bounds:
    """The seconds that are allowed without a sign of life, to the first sign, and of one step."""

    silence: float
    start: float
    step: float

    @classmethod
    def of_environment(cls) -> Bounds:
        """Read the bounds from SHAREGEN_WORKER_TIMEOUT, in seconds. Raises UsageError where it is
        no such number.
        """
        text = os.environ.get(VARIABLE, "")
        try:
            silence = float(text) if text else _SILENCE
        except ValueError:
            silence = math.nan
        if not silence > 0:
            raise UsageError(f"{VARIABLE} is {text!r:.40}: give seconds, more than 0, or inf")
        return cls(silence, _START * silence, _STEP * silence)
