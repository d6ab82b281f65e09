"""What a command tells on stderr beside its data: one line each, and how such lines look."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from sharegen.common.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

_AS_ON_A_TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables by which Rich takes for a terminal what is none."""


def complain(line: str) -> None:
    """Tell what is wrong, or to be heeded: marked as sharegen's, in one line whatever it quotes.

    It imports nothing that takes time, for it is how a command fails.
    """
    print(printable(f"sharegen: {' '.join(line.split())}"), file=sys.stderr)


def say(line: str, style: str = "dim") -> None:
    """Tell what goes along with the data: faintly, where a terminal shows both."""
    if not (sys.stderr.isatty() or any(name in os.environ for name in _AS_ON_A_TERMINAL)):
        print(printable(line), file=sys.stderr)
        return
    from rich.text import Text

    stderr_console().print(Text(printable(line)), style=style, soft_wrap=True)


def warn_unconfined() -> None:
    """Tell that programs which a model wrote run as the user does."""
    say("the programs run without isolation", style="bold red")


def stderr_console() -> Console:
    """The terminal behind stderr, for trees, tables and bars."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)
