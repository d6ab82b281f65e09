"""Running a row: the command that a user would give, in a process of its own, and its numbers."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.card.machine import ROOT
from benchmarks.card.rows import SHAPES, CardRow, command_of
from benchmarks.measurement import Engines, Layer, Numbers, Peer, Workload
from sharegen.bench.parts import PARTS
from sharegen.errors import SharegenError
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.results.screen.summary import slots_taken

GSM8K_FILES = ("gsm8k_test.jsonl", "gsm8k_train.jsonl")


_ONE = Engines()
_SMALL = ("--limit", "8", "--max-tokens", "2", "--compile")  # as many rows as in the whole job
_PATIENCE = 10.0  # seconds in which a command that is stopped may end by itself


@dataclass(frozen=True)
class Ran:
    """What a row came to. command: as a user would type it."""

    command: str
    numbers: Numbers
    workload: Workload | None = None
    engines: Engines = _ONE
    peers: tuple[Peer, ...] = ()
    printed: Any = None


@dataclass(frozen=True)
class Setting:
    """gsm8k: the folder of its two files, None to have it from the hub. deadline: by the clock
    `time.monotonic`, when a row is stopped; late: what is said then."""

    gsm8k: Path | None = None
    is_rehearsal: bool = False
    deadline: float | None = None
    late: str = "the budget is spent: it begins anew next time"


def run_rows(rows: Sequence[CardRow], setting: Setting) -> Iterator[Ran]:
    """What each of some rows of one engine comes to, as soon as it is measured.

    Output goes to stderr. Raises SharegenError where a row fails, or takes too long.
    """
    if rows[0].kind == "command":
        yield _command(rows[0], setting)
        return
    command = [sys.executable, "-m", "sharegen", *command_of(rows)]
    with closing(_lines(command, setting)) as lines:
        for row in rows:
            yield _WAYS[row.kind](row, _numbers(row, lines))
        for _ in lines:
            pass  # it ends by itself


def _numbers(row: CardRow, lines: Iterator[str]) -> dict[str, Any]:
    """The next line that is JSON."""
    for line in lines:
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                break
            assert isinstance(found, dict)
            return found
    raise SharegenError(f"row {row.name}: its command printed no JSON line")


def _job(row: CardRow, printed: dict[str, Any]) -> Ran:
    from sharegen.engine.model.states.mixers import TORCH_CODE  # which imports transformers

    if row.gpus and printed.get("mixers") == TORCH_CODE:
        raise SharegenError(
            f"row {row.name}: mixers ran in {TORCH_CODE}, so its figure is not written: "
            "pip install '.[hybrid]' in a clone of sharegen"
        )
    workload = Workload(
        name=printed["workload"],
        **{name: printed[name] for name in ("prefix", "problem", "problems", "samples", "output")},
    )
    engines = Engines(
        workers=printed.get("workers", 1),
        ranks=printed.get("ranks", 1),
        sequences=printed.get("max_sequences", printed.get("rows")),
    )
    numbers = Numbers(
        tokens_per_second=printed["tokens_per_second"],
        tokens=printed["tokens"],
        seconds=printed["seconds"],
        start_seconds=printed.get("start_seconds"),
        ceiling_tokens_per_second=printed.get("ceiling_tokens_per_second"),
        step_ms=printed.get("step_ms"),
        parts_ms=_parts(printed),
        one_engine_tokens_per_second=printed.get("one_tokens_per_second"),
        weights_bytes=printed.get("weights_bytes"),
        peak_kv_bytes=printed["peak_kv_reserved_bytes"],
    )
    return Ran(_typed(row), numbers, workload, engines, row.peers, printed)


def _parts(printed: dict[str, Any]) -> dict[str, float]:
    """The parts of a step that take any time, but for the whole."""
    parts = {part: printed.get(f"{part}_ms", 0.0) for part in (*PARTS, "idle")}
    return {part: ms for part, ms in parts.items() if ms > 0}


def _generate(row: CardRow, printed: dict[str, Any]) -> Ran:
    peers = tuple(
        Peer(name="transformers", version=None, mode=f"generate(), {batch} sequences a call",
             tokens_per_second=pace, sitting="same")
        for batch, pace in printed["generate_tokens_per_second"].items() if pace
    )  # fmt: skip
    workload = Workload(name="bundled problems", problems=printed["problems"],
                        samples=printed["samples"], output=printed["max_tokens"])  # fmt: skip
    numbers = Numbers(tokens_per_second=printed["sharegen_tokens_per_second"])
    return Ran(_typed(row), numbers, workload, Engines(workers=printed["workers"]), peers, printed)


def _attention(row: CardRow, printed: dict[str, Any]) -> Ran:
    layers = tuple(
        Layer(
            heads=f"{each['num_heads']}/{each['num_kv_heads']}",
            lengths=f"{each['few']:,} / {each['problem'] or '-'}, "
            f"{each['problems']} x {each['samples']:,}, {each['suffix']}",
            floor=each["floor"],
            **{name: each["microseconds"][name] for name in ("sharegen", "flashinfer", "torch")},
        )
        for each in printed["table"]
    )
    return Ran(_typed(row), Numbers(layers=layers), printed=printed)


def _command(row: CardRow, setting: Setting) -> Ran:
    """A whole `sharegen run` on a model of random weights, from its start to its end.

    It is the second one on the machine: a small one leaves compiled code behind, as for a user.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shape, device = f"{SHAPES}/{row.shape}", "cpu" if setting.is_rehearsal else "cuda"
        made = ("random-model", shape, "{}", "--eos", "100" if setting.is_rehearsal else "1001")
        model = str(folder / "model")
        making = [model if word == "{}" else word for word in made]
        _run([sys.executable, "-m", "benchmarks", *making, "--device", device], setting)
        data = _data(setting)
        journal = folder / "journal.jsonl"
        flags = [*row.command, *data, "--model", model, "--device", device]
        run = [sys.executable, "-m", "sharegen", *flags, "--output"]
        _run([*run, str(folder / "small.jsonl"), *_SMALL], setting)
        begun = time.time()
        _run([*run, str(journal)], setting)
        ended = time.time()
        found = RunFile.read(run_file_path(journal))
        assert found is not None
        stats, sampling = found.stats, found.timings["sampling_seconds"]
        after = ended - journal.stat().st_mtime  # the last sample was written then
        numbers = Numbers(
            tokens_per_second=stats["generated_tokens"] / sampling,
            tokens=stats["generated_tokens"],
            seconds=sampling,
            command_seconds=ended - begun,
            start_seconds=max(ended - begun - sampling - after, 0.001),
            end_seconds=after,
            slots_taken=slots_taken(stats),
        )
        typed = [
            shlex.join(
                ["python", "-m", "benchmarks", *(w if w != "{}" else "model" for w in made)]
            ),
            *(
                shlex.join(["sharegen", *row.command, *map(_bare, data), "--model", "model", *more])
                for more in (_SMALL, ())
            ),
        ]
        asked, length = found.counts["samples_asked"], found.configuration["sampling"]["max_tokens"]
    problems = found.counts["problems"]
    workload = Workload(name="Large Language Monkeys, GSM8K", problems=problems,
                        samples=asked // problems, output=length)  # fmt: skip
    engines = Engines(sequences=stats.get("slots"))
    printed = {"timings": {**found.timings, "progress": None}, "stats": stats}
    return Ran("\n".join(typed), numbers, workload, engines, row.peers, printed)


_WAYS: dict[str, Callable[[CardRow, dict[str, Any]], Ran]] = {
    "job": _job, "ceiling": _job, "cpu": _generate, "attention": _attention,
}  # fmt: skip


def _data(setting: Setting) -> list[str]:
    """The flags that say where the problems and the examples are."""
    if setting.gsm8k is None:
        return ["--dataset", "tinymath" if setting.is_rehearsal else "gsm8k"]
    test, train = (str(setting.gsm8k / name) for name in GSM8K_FILES)
    return ["--dataset", test, "--few-shot-file", train]


def _bare(word: str) -> str:
    """A file by its name alone, for the command that is kept."""
    return Path(word).name if Path(word).name in GSM8K_FILES else word


def _typed(row: CardRow) -> str:
    return shlex.join(["sharegen", *row.command])


def _run(command: Sequence[str], setting: Setting) -> None:
    """Run it to its end. Raises SharegenError for a failure, and at the deadline."""
    for line in _lines(command, setting):
        sys.stderr.write(line)


def _lines(command: Sequence[str], setting: Setting) -> Generator[str]:
    """What it prints on stdout, line by line. Raises SharegenError for a failure, and at the
    deadline.
    """
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    late = threading.Event()

    def stop() -> None:
        late.set()
        _end(process)

    left = None if setting.deadline is None else max(setting.deadline - time.monotonic(), 1.0)
    timer = threading.Timer(left or 0.0, stop)
    if left is not None:
        timer.start()
    try:
        yield from process.stdout
        process.wait()
    finally:
        timer.cancel()
        _end(process)
        process.stdout.close()
    if late.is_set():
        raise SharegenError(setting.late)
    if process.returncode:
        raise SharegenError(f"{shlex.join(command[1:])}: ended with exit code {process.returncode}")


def _end(process: subprocess.Popen[str]) -> None:
    """End it where it has not ended; its engines and ranks end with it."""
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
