"""`python -m benchmarks NAME`, from a clone."""

from __future__ import annotations

from benchmarks.commands import app
from sharegen.cli import main

main(commands=app, name="python -m benchmarks")
