"""From a command to its first sample, by part: `python -m benchmarks start`.

Each model is started once with an empty cache, as on a machine that never ran it, and then as often
as is asked with what that start kept. The files of torch and of the model are in memory by then.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.card.machine import find_machine
from benchmarks.measurement import Measurement, Numbers, Start
from sharegen.common.start_clock import PARTS
from sharegen.errors import ModelError, UsageError

PROBLEMS, SAMPLES, TOKENS = 20, 8, 64
_POLL_SECONDS = 0.005
_LONGEST = 600.0  # seconds of one command


def measure(models: Sequence[Path], starts: int, flags: Sequence[str]) -> Iterator[Start]:
    """The first start of each model, then the median of the later ones.

    flags: more of `sharegen run`.
    """
    for model in models:
        if not (model / "config.json").is_file():
            raise UsageError(f"model {model}: there is no config.json: give a model's folder")
    for model in models:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            rows = (json.dumps({"prompt": _prompt(index)}) + "\n" for index in range(PROBLEMS))
            (folder / "prompts.jsonl").write_text("".join(rows), encoding="utf-8")
            yield _start(model, folder, "first", flags)
            later = [_start(model, folder, f"later-{i}", flags) for i in range(starts)]
            yield median(later)


def median(starts: Sequence[Start]) -> Start:
    """The one in the middle, by the seconds to the first sample."""
    middle = sorted(starts, key=lambda start: start.seconds)[(len(starts) - 1) // 2]
    return middle.model_copy(update={"starts": len(starts)})


def command(model: Path, prompts: Path, output: Path, flags: Sequence[str]) -> list[str]:
    """What a user would type, by this Python."""
    asked = ["--dataset", str(prompts), "--model", str(model), "-n", str(SAMPLES)]
    asked += ["--max-tokens", str(TOKENS), "-o", str(output), *flags]
    return [sys.executable, "-m", "sharegen", "run", "prompts", *asked]


def _start(model: Path, folder: Path, name: str, flags: Sequence[str]) -> Start:
    journal = folder / name / "out.jsonl"
    journal.parent.mkdir()
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    for setting in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        environment.pop(setting, None)
    said = folder / name / "stderr"
    begun = time.monotonic()
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            command(model, folder / "prompts.jsonl", journal, flags),
            env=environment, stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
        try:
            first = _first_line(journal, process, begun)
            process.wait(_LONGEST)
        finally:
            process.kill()
            process.wait()
    whole = time.monotonic() - begun
    if process.returncode or first is None:
        lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["?"]
        raise ModelError(f"model {model}: the command failed: {lines[-1]:.300}")
    return read_start(journal, model.name, "later" if "later" in name else "first", first, whole)


def _first_line(journal: Path, process: subprocess.Popen[bytes], begun: float) -> float | None:
    """Seconds until the journal has something; None where the command ends without."""
    while time.monotonic() - begun < _LONGEST:
        ended = process.poll() is not None
        if journal.exists() and journal.stat().st_size:
            return time.monotonic() - begun
        if ended:
            return None
        time.sleep(_POLL_SECONDS)
    return None


def read_start(journal: Path, model: str, when: str, first: float, whole: float) -> Start:
    """What the run file says of the parts. first, whole: seconds, as seen from outside."""
    run = json.loads((journal.parent / ".sharegen" / "out.run.json").read_bytes())
    parts = {name: run["timings"]["start"].get(name, 0.0) for name in PARTS}
    on_gpu = run["stats"]["device"] == "cuda"
    compiled = run["extent"]["machine"]["compile"] if on_gpu else None
    return Start.model_validate(
        {
            "model": model, "when": when, "seconds": first, "command_seconds": whole,
            "parts": {name: seconds for name, seconds in parts.items() if seconds},
            "compiled": compiled,
        }
    )  # fmt: skip


def _prompt(index: int) -> str:
    numbers = " ".join(str((7 * index + place) % 97) for place in range(40))
    return f"Question: {numbers} plus {index}?\nAnswer:"


def gpus(flags: Sequence[str]) -> int:
    """How many GPUs a run with these flags takes, of which each worker and each rank has one."""
    found = 1
    words = [word for flag in flags for word in flag.split("=", 1)]
    for flag, said in itertools.pairwise(words):
        if flag in ("--workers", "--tensor-parallel-size") and said.isdigit():
            found *= int(said)
    return found


def measurement(
    starts: Sequence[Start], flags: Sequence[str], commit: str | None, busy: bool
) -> Measurement:
    """The starts, with all that makes them count."""
    machine = find_machine(commit)
    on_gpu = any(start.compiled is not None for start in starts)
    today, card = datetime.now(UTC).date(), machine.card(gpus(flags) if on_gpu else 0)
    models = " ".join(dict.fromkeys(start.model for start in starts))
    more = "".join(f" --flag={shlex.quote(flag)}" for flag in flags)
    row = "-".join(["start", *(re.sub(r"[^a-z0-9.]+", "", flag) for flag in flags)])
    found = Measurement.model_construct(
        name=f"{today}-{card.short}-{row}", row=row, kind="start",
        command=f"python -m benchmarks start {models}{more}", date=today, commit=machine.commit,
        versions=machine.versions(int(on_gpu)), card=card,
        numbers=Numbers(starts=tuple(starts)), busy=busy,
        note=f"With {shlex.join(flags)}." if flags else None,
    )  # fmt: skip
    unknown = dict.fromkeys(found.missing(), "this machine does not tell it")
    return Measurement.model_validate(found.model_copy(update={"unknown": unknown}).model_dump())
