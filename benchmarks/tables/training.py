"""A training: its rollouts and steps, and how far log-probabilities are apart."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measurement import Measurement, Training
from benchmarks.tables.markdown import number, table


def training_tables(row: Measurement, training: Training) -> Iterator[str]:
    work = row.workload
    lines = [
        ("model", f"{row.shape}, {row.precision}"),
        ("samples of a step", f"{work.problems} x {work.samples}" if work else ""),
        ("tokens of each, at most", number(work.output) if work else ""),
        ("tokens per second of a rollout", number(row.numbers.tokens_per_second)),
        ("the first rollout, s", number(training.first_rollout_seconds, 1)),
        ("a later one, s", number(training.rollout_seconds, 1)),
        ("a whole step, s", number(training.step_seconds, 1)),
        ("the weights, GiB", _gib(row.numbers.weights_bytes)),
        ("most in use in a rollout, GiB", _gib(training.rollout_peak_bytes)),
        ("the same of an engine with a copy, GiB", _gib(training.second_engine_peak_bytes)),
        ("most in use by the trainer, GiB", _gib(training.trainer_peak_bytes)),
        ("memory grown since the third step, GiB", _gib(training.grown_bytes)),
        ("sequences that TRL would mask beside vLLM", _of(training.masked, training.sequences)),
        *(
            (f"{peer.mode} of {peer.name}, tokens per second", number(peer.tokens_per_second))
            for peer in row.peers
        ),
    ]
    yield table(("what", "measured"), [line for line in lines if line[1]]) + "\n"
    if training.differences:
        counted = all(each.masked is not None for each in training.differences)
        header = ("log-probabilities of drawn tokens", "apart on average", "at most", "masked")
        cells = [
            (each.what, number(each.mean, 5), number(each.largest, 4),
             _of(each.masked or 0, each.sequences or 0))
            for each in training.differences
        ]  # fmt: skip
        last = 4 if counted else 3
        yield table(header[:last], [line[:last] for line in cells]) + "\n"


def _of(some: int, every: int) -> str:
    return f"{some} of {every:,}"


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / 2**30:,.2f}"
