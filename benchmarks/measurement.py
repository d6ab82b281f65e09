"""The schema of a file in `benchmarks/results/`: one measurement, and all that makes it count.

What a source does not tell is null, with the reason in `unknown`: nothing is guessed. Reading needs
no torch.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from benchmarks.options import COMMIT
from sharegen.common.files import replace_file
from sharegen.errors import DataError

RESULTS = Path(__file__).parent / "results"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Versions(_Part):
    """What ran. driver, cuda: of the GPU; null on a CPU."""

    sharegen: str
    torch: str | None
    triton: str | None
    transformers: str | None
    driver: str | None
    cuda: str | None


class Card(_Part):
    """What it ran on. name: as the driver, or `lscpu`, gives it. uuids: which cards these were."""

    kind: Literal["gpu", "cpu"]
    name: str
    count: Annotated[int, Field(ge=1)] = 1
    power_limit_watts: float | None
    uuids: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.name if self.count == 1 else f"{self.count} x {self.name}"

    @property
    def short(self) -> str:
        """Its name in a file's: h200, h200x2, xeon-r-processor-2-cores."""
        name = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-").removeprefix("nvidia-")
        return name if self.count == 1 else f"{name}x{self.count}"


class Workload(_Part):
    """Tokens that all prompts share, tokens of each problem, problems, samples of each, output."""

    name: str
    prefix: int | None = None
    problem: int | None = None
    problems: int
    samples: int
    output: int | None


class Engines(_Part):
    """workers: engines. ranks: GPUs of each. sequences: that each decodes together, at most."""

    workers: int = 1
    ranks: int = 1
    sequences: int | None = None


class Layer(_Part):
    """Microseconds of one layer of decode attention, beside others and the floor of the card."""

    heads: str
    lengths: str
    sharegen: Positive
    flashinfer: Positive | None = None
    torch: Positive | None = None
    floor: Positive | None = None


class Sum(_Part):
    """Microseconds of adding up over GPUs, by the bytes of each and the way."""

    bytes: int
    nccl: Positive
    two_shot_with_copy: Positive
    two_shot: Positive
    one_shot: Positive
    difference: float


class Points(_Part):
    """Milliseconds: the median, and what 99 of 100 stay below."""

    p50: Positive
    p99: Positive


class Latency(_Part):
    """What so many clients of a server wait for, each of which asks one request after the other."""

    clients: int
    first_token: Points
    token: Points


class Arrivals(_Part):
    """Requests that come to a server at random times, `rate` a second. shared: whether prompts
    share their examples. mean: milliseconds from arrival to end by the tokens of the answer."""

    rate: Positive
    requests: int
    shared: bool
    mean: Positive
    normalised: Points


class Start(_Part):
    """From a command to its first sample, in seconds: in all, as seen from outside, and by part.

    when: with an empty cache, or with what an earlier start of the model kept. starts: of which it
    is the median. compiled: whether the model's layers were; null on a CPU.
    """

    model: str
    when: Literal["first", "later"]
    starts: Annotated[int, Field(ge=1)] = 1
    seconds: Positive
    command_seconds: Positive
    parts: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    compiled: bool | None = None


class Difference(_Part):
    """How far log-probabilities of the same drawn tokens are apart, in nats, computed two ways.

    masked: of so many sequences, those that TRL would leave out beside vLLM if the first way had
    drawn them.
    """

    what: str
    mean: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    largest: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    sequences: int | None = None
    masked: int | None = None


class Training(_Part):
    """Steps of GRPO, of which each begins with a rollout. What is of "later" steps leaves the first
    out, in which the engine is opened.

    step_seconds, rollout_seconds: medians of later steps. peaks: bytes of a GPU's memory in use at
    most while a rollout lasts, while the trainer computes, and while an engine with a copy of the
    module and as large a KV cache draws a rollout. grown_bytes: what is in use at the last step's
    end and was not at the third's. masked: of the sequences that were looked at, those that TRL
    would leave out by its default for another engine's samples.
    """

    steps: Annotated[int, Field(ge=1)]
    first_rollout_seconds: Positive
    rollout_seconds: Positive | None = None
    step_seconds: Positive | None = None
    rollout_peak_bytes: int | None = None
    trainer_peak_bytes: int | None = None
    second_engine_peak_bytes: int | None = None
    grown_bytes: int | None = None
    sequences: int
    masked: int
    differences: tuple[Difference, ...] = ()


class Price(_Part):
    """Tokens per second of a workload in the deterministic mode and in the plain one, each the best
    of its draws, in one process. any_tree: with bits that do not depend on the tree either. That
    and plain are null where they were not drawn. samples: of the workload; differing: how many had
    other bits in further deterministic engines than in the first, null where there was one alone.
    """

    workload: str
    deterministic: Positive
    plain: Positive | None = None
    sequences: int
    samples: int
    any_tree: Positive | None = None
    differing: int | None = None


class Numbers(_Part):
    """What was measured; one of tokens_per_second, layers, sums, starts, latencies, arrivals and
    prices is there.

    seconds: the sampling of `tokens`. command_seconds: a whole command, of which start_seconds
    came before its first sample was asked for, and end_seconds after the last one had come.
    parts_ms: of step_ms, by part (`sharegen/bench/parts.py`), which may run side by side.
    call_tokens_per_second: of a server, what one call of `LLM.generate` draws that asks the same.
    """

    tokens_per_second: Positive | None = None
    tokens: int | None = None
    seconds: Positive | None = None
    command_seconds: Positive | None = None
    start_seconds: Positive | None = None
    end_seconds: Positive | None = None
    ceiling_tokens_per_second: Positive | None = None
    step_ms: Positive | None = None
    parts_ms: dict[str, Positive] = {}
    slots_taken: Positive | None = None
    one_engine_tokens_per_second: Positive | None = None
    weights_bytes: int | None = None
    peak_kv_bytes: int | None = None
    layers: tuple[Layer, ...] = ()
    sums: tuple[Sum, ...] = ()
    call_tokens_per_second: Positive | None = None
    latencies: tuple[Latency, ...] = ()
    arrivals: tuple[Arrivals, ...] = ()
    starts: tuple[Start, ...] = ()
    training: Training | None = None
    prices: tuple[Price, ...] = ()

    @model_validator(mode="after")
    def _is_something(self) -> Numbers:
        tables = ("layers", "sums", "starts", "latencies", "arrivals", "prices")
        if self.tokens_per_second is None and not any(getattr(self, name) for name in tables):
            raise ValueError(f"it has no number: tokens_per_second, {', '.join(tables)}")
        return self


class Peer(_Part):
    """Another program on the same work.

    sitting: "same" or "another": measured by us, on the same machine in one go or not. source: the
    address where its makers, or others, published the number. Exactly one of the two is there.
    """

    name: str
    version: str | None
    mode: str
    tokens_per_second: Positive
    sitting: Literal["same", "another"] | None = None
    source: Annotated[str, Field(pattern=r"^https://")] | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _has_a_source(self) -> Peer:
        if (self.sitting is None) == (self.source is None):
            raise ValueError(
                f"{self.name}'s number has no source: give `sitting` (same, another) where we "
                "measured it, or `source`, the address where it was published; and not both"
            )
        return self


class Measurement(_Part):
    """One row of a table.

    name: of the file. row: what was measured; of several with one row and card the newest stands
    in the tables. kind: the table. commit: of sharegen, with "+changes" where the clone had some.
    printed: what the command printed. published: where the figure comes from, if it was not
    written by the program that measured it. busy: others used the machine. few_experts: the random
    weights sent most rows of a layer to few of its experts, as all did up to 45a5ecc8.
    """

    name: str
    row: str
    kind: Literal[
        "job",
        "ceiling",
        "command",
        "cpu",
        "attention",
        "sums",
        "serve",
        "start",
        "training",
        "same-bits",
    ]
    command: str | None
    date: datetime.date
    commit: Annotated[str, Field(pattern=f"^{COMMIT}$")] | None
    versions: Versions
    card: Card
    shape: str | None = None
    workload: Workload | None = None
    precision: Literal["bf16", "float16", "FP8", "MXFP4", "float32"] | None = None
    engines: Engines = Engines()
    numbers: Numbers
    peers: tuple[Peer, ...] = ()
    published: str | None = None
    busy: bool = False
    few_experts: bool = False
    note: str | None = None
    unknown: dict[str, str] = {}
    printed: Any = None

    @model_validator(mode="after")
    def _what_is_missing_has_a_reason(self) -> Measurement:
        missing = set(self.missing())
        for field in sorted(missing - set(self.unknown)):
            raise ValueError(f"{field} is null: say why in `unknown`")
        for field in sorted(set(self.unknown) - missing):
            raise ValueError(f"`unknown` has {field}, which is known, or is no field")
        if self.command is None and self.published is None:
            raise ValueError("command is null: `published` must say where the figure comes from")
        return self

    def missing(self) -> Iterator[str]:
        """The fields that are null, and need a reason."""
        on_gpu = {"versions.triton", "versions.driver", "versions.cuda", "card.power_limit_watts"}
        values = {"command": self.command, "commit": self.commit}
        values |= {f"versions.{name}": value for name, value in self.versions}
        values["card.power_limit_watts"] = self.card.power_limit_watts  # type: ignore[assignment]
        for field, value in values.items():
            if value is None and (self.card.kind == "gpu" or field not in on_gpu):
                yield field

    @property
    def best_peer(self) -> Peer | None:
        return max(self.peers, key=lambda peer: peer.tokens_per_second, default=None)

    @property
    def times(self) -> float | None:
        """How many times as fast as the best peer."""
        if self.best_peer is None or self.numbers.tokens_per_second is None:
            return None
        return self.numbers.tokens_per_second / self.best_peer.tokens_per_second


def read(path: Path) -> Measurement:
    """Raises DataError, which names the file, the field and what to do."""
    try:
        found = Measurement.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise DataError(f"{path}: {first_error(error)}") from error
    if found.name != path.stem:
        raise DataError(f"{path}: name is {found.name!r}: it must be the file's, {path.stem!r}")
    return found


def first_error(error: ValidationError) -> str:
    """What is wrong first, in a line."""
    found = error.errors(include_url=False)[0]
    where = ".".join(map(str, found["loc"]))
    said = found["msg"].removeprefix("Value error, ")
    if found["type"] == "missing":
        said = "it is missing; what the source does not tell is null, with the reason in `unknown`"
    return f"{where}: {said}" if where else said


def read_all(folder: Path = RESULTS) -> list[Measurement]:
    """By row; of each row and card the newest alone. Raises DataError.

    Where no other program ran beside the newest, those that ran beside an older one stand in, as
    measured in another sitting.
    """
    newest: dict[tuple[str, str], Measurement] = {}
    for found in sorted(map(read, folder.glob("*.json")), key=lambda each: (each.date, each.name)):
        key = (found.row, found.card.label)
        newest[key] = with_peers_of(found, newest.get(key))
    return [newest[key] for key in sorted(newest)]


def with_peers_of(row: Measurement, older: Measurement | None) -> Measurement:
    """The row with those that we measured beside an older one, where it has none of its own."""
    if older is None or any(peer.sitting for peer in row.peers):
        return row
    stand_in = [
        peer.model_copy(update={"sitting": "another", "note": peer.note or f"On {older.date}"})
        for peer in older.peers
        if peer.sitting
    ]
    return row.model_copy(update={"peers": (*row.peers, *stand_in)})


def write(measurement: Measurement, folder: Path) -> Path:
    """The whole file or nothing. Raises DataError."""
    path = folder / f"{measurement.name}.json"
    text = measurement.model_dump_json(indent=2, exclude_defaults=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode() + b"\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error
    return path
