"""A process that hears of nothing, as one within a library's long import, for test_program.py."""

import os
import time


def main(descriptor: int) -> None:
    os.write(descriptor, b"%d" % os.getpid())
    until = time.monotonic() + 30
    sum(iter(lambda: time.monotonic() < until, False))
