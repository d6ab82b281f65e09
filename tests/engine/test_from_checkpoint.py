"""How far a job with quantised weights is from the weights as the checkpoint has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sharegen.engine import from_checkpoint
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.from_checkpoint import distance_from_checkpoint
from sharegen.engine.model.fp8.products import EMULATE
from sharegen.engine.model.load import load_as_stored, load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.verifying import Distance, Found, Step, Verification, Verified
from tests.engine.jobs import forest, make_engine, requests_of
from tests.engine.tiny_models import TINY, make_tiny

PARAMS = SamplingParams(temperature=1.0, max_tokens=8)


def verified(model: LoadedModel, steps: int = 24) -> tuple[list[Step], Verified]:
    """Steps of a whole job, and how far they are from the model as it was loaded."""
    verification = Verification(steps)
    engine = make_engine(model)
    for completion in engine.generate(requests_of(forest(), verification.asking(PARAMS), 2)):
        verification.note(completion)
    engine.close()
    found = verification.check(model)
    assert found is not None
    return verification.steps, found


def distance(name: str, folder: Path, quantization: str | None) -> tuple[Verified, Distance]:
    make_tiny(name).save_pretrained(folder)
    model = load_model(folder, device="cpu", quantization=quantization)
    steps, found = verified(model)
    return found, distance_from_checkpoint(load_as_stored(folder, model.dtype), model, steps)


# Plain; a softcap, so that attention is eager; one that counts positions by itself.
@pytest.mark.parametrize("name", ["llama", "gemma2", "llama4"])
@pytest.mark.turn(3)
def test_without_quantisation_it_is_that_of_rounding(name: str, tmp_path: Path) -> None:
    found, far = distance(name, tmp_path, None)
    assert far.steps == found.steps == 24
    assert 0 < far.mean <= far.p99 <= far.largest < 1e-4
    assert far.changed == 0


@pytest.mark.slow
@pytest.mark.turn(10)
def test_without_quantisation_it_is_that_of_rounding_everywhere(tmp_path: Path) -> None:
    for name in TINY:
        _, far = distance(name, tmp_path / name, None)
        assert far.largest < 1e-4 and far.changed == 0, name


@pytest.mark.parametrize("name", ["mistral", "granite"])
def test_quantised_weights_are_told_from_the_engine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine computes what the model with FP8 weights says; that is far from the checkpoint.

    No activation of these lies so near the middle of two numbers of e4m3 that the last bit of
    attention decides between them.
    """
    monkeypatch.setenv(EMULATE, "1")
    found, far = distance(name, tmp_path, "fp8")
    assert found.largest < 1e-3 < 1e-2 < far.mean < far.p99 <= far.largest
    assert found.changed == 0 <= far.changed < 0.5


def test_numbers_of_a_distance() -> None:
    model = load_model(make_tiny("llama"))
    steps, _ = verified(model)
    exact = [Found(step.numbers, max(step.numbers, key=step.numbers.__getitem__)) for step in steps]
    assert Distance.of(steps, exact) == Distance(len(steps), 0.0, 0.0, 0.0, 0.0)
    moved: list[Found | None] = [
        Found({token: number + 0.5 for token, number in own.logprobs.items()}, own.likeliest)
        for own in exact
    ]
    assert Distance.of(steps, moved) == Distance(len(steps), *[pytest.approx(0.5)] * 3, 0.0)
    moved[1:] = [None] * (len(steps) - 1)
    moved[0] = Found(exact[0].logprobs, -1)  # one that the engine does not name at all
    assert Distance.of(steps, moved) == Distance(1, 0.0, 0.0, 0.0, 1.0)
    assert Distance.of(steps, [None] * len(steps)).steps == 0


def test_batches_grow_smaller_where_memory_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path
    make_tiny("llama").save_pretrained(folder)
    model = load_model(folder, device="cpu")
    steps, _ = verified(model)
    stored = load_as_stored(folder, model.dtype)
    wanted = distance_from_checkpoint(stored, model, steps)
    compute, sizes = from_checkpoint._compute, []

    def with_room_for(tokens: int) -> Any:
        def limited(stored: Any, model: Any, batch: Any) -> Any:
            size = len(batch) * max(map(from_checkpoint._length, batch))
            sizes.append(size)
            if size > tokens:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return compute(stored, model, batch)

        return limited

    monkeypatch.setattr(from_checkpoint, "_TOKENS", 512)
    monkeypatch.setattr(from_checkpoint, "_compute", with_room_for(150))
    found = distance_from_checkpoint(stored, model, steps)
    assert (found.steps, found.changed) == (wanted.steps, wanted.changed)
    assert abs(found.mean - wanted.mean) < 1e-5 and max(sizes) > 150
    monkeypatch.setattr(from_checkpoint, "_compute", with_room_for(40))  # the longest do not fit
    assert 0 < distance_from_checkpoint(stored, model, steps).steps < wanted.steps
