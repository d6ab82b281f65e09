"""What was measured of a training as a file of `benchmarks/results/`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from benchmarks.card.machine import find_machine
from benchmarks.measurement import Engines, Measurement, Numbers, Workload
from benchmarks.training.steps import Measured, TrainingSettings

_PRECISIONS = {"bfloat16": "bf16", "float16": "float16", "float32": "float32"}


def measurement(
    asked: TrainingSettings, found: Measured, command: str, commit: str | None, busy: bool
) -> Measurement:
    """The training, with all that makes it count. command: as a user would type it again."""
    machine = find_machine(commit)
    gpus = int(found.training.rollout_peak_bytes is not None)
    today, card = datetime.now(UTC).date(), machine.card(gpus)
    folder = Path(asked.model)
    model = folder.parent.name if folder.name == "model" else folder.name
    kinds = {
        f"-{asked.dtype}": asked.dtype != "bfloat16",
        "-autocast": asked.autocast,
        "-fp32-head": asked.fp32_head,
    }
    row = f"training-{model.lower()}" + "".join(kind for kind, is_so in kinds.items() if is_so)
    made = Measurement.model_construct(
        name=f"{today}-{card.short}-{row}", row=row, kind="training", command=command, date=today,
        commit=machine.commit, versions=machine.versions(gpus), card=card, shape=model,
        workload=Workload(
            name=f"{asked.prompts} prompts x {asked.samples}", problems=asked.prompts,
            samples=asked.samples, output=asked.output,
        ),
        precision=_PRECISIONS[asked.dtype], engines=Engines(),
        numbers=Numbers(
            tokens_per_second=found.tokens / found.seconds, tokens=found.tokens,
            seconds=found.seconds, weights_bytes=found.weights_bytes, training=found.training,
        ),
        peers=() if found.peer is None else (found.peer,), busy=busy,
        note=_note(asked),
    )  # fmt: skip
    unknown = dict.fromkeys(made.missing(), "this machine does not tell it")
    return Measurement.model_validate(made.model_copy(update={"unknown": unknown}).model_dump())


def _note(asked: TrainingSettings) -> str | None:
    said = []
    if asked.autocast:
        said.append("The module is in float32 and trains under autocast; rollouts are of copies.")
    if asked.fp32_head:
        said.append("The output head is cast to float32.")
    return " ".join(said) or None
