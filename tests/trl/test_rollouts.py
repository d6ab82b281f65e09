"""GRPO by TRL's own trainer over the module that sharegen samples from."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharegen.engine.model.lent.lending import is_lent
from sharegen.errors import RequestError, SharegenError, UsageError, WeightsMovedError
from sharegen.trl.live import LiveEngine
from tests.trl.trainers import Kept, grpo

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs trl"),
    pytest.mark.usefixtures("brief_collections"),  # trainers ask for them
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


@pytest.mark.turn(4)
def test_two_steps_of_grpo(tmp_path: Path) -> None:
    rollout = Kept()
    trainer = grpo(tmp_path, rollout)
    before = [each.clone() for each in trainer.model.parameters()]
    trainer.train()
    assert len(rollout.drawn) == 2
    for drawn in rollout.drawn:
        groups = [tuple(ids) for ids in drawn["prompt_ids"]]
        assert groups[0] == groups[3] != groups[4] == groups[7]
        for ids, logprobs in zip(drawn["completion_ids"], drawn["logprobs"], strict=True):
            assert 1 <= len(ids) == len(logprobs) <= 12
            assert set(ids[:-1]).isdisjoint(trainer.eos_token_ids)
    assert sum(rollout.differences) / len(rollout.differences) < 1e-5
    assert max(rollout.differences) < 1e-3
    assert rollout.drawn[0]["completion_ids"] != rollout.drawn[1]["completion_ids"]
    after = list(trainer.model.parameters())
    assert any((a != b).any() for a, b in zip(before, after, strict=True))
    assert all(part.training for part in trainer.model.modules())


@pytest.mark.slow
@pytest.mark.turn(3)
def test_log_probabilities_are_of_the_distribution_that_was_drawn_from(tmp_path: Path) -> None:
    """After temperature, as the trainer divides its logits by it; after filters, too."""
    rollout = Kept()
    grpo(tmp_path, rollout, max_steps=1, temperature=0.7).train()
    assert sum(rollout.differences) / len(rollout.differences) < 1e-5
    rollout = Kept()
    grpo(tmp_path, rollout, max_steps=1, top_k=1).train()
    assert all(abs(each) < 1e-6 for row in rollout.drawn[0]["logprobs"] for each in row)


def test_what_is_not_served_is_refused_at_the_first_rollout(tmp_path: Path) -> None:
    trainer = grpo(tmp_path, Kept(), generation_kwargs={"num_beams": 2})
    with pytest.raises(UsageError, match="generation_kwargs has 'num_beams'"):
        trainer.train()


@pytest.mark.slow
@pytest.mark.turn(3)
def test_a_prompt_that_leaves_no_room_is_named_by_its_text(tmp_path: Path) -> None:
    trainer = grpo(tmp_path, Kept(), ("Tom has 1 2 3" + " 4" * 2100, "1"))
    with pytest.raises(RequestError, match=r"2,1.. tokens and.*2,048: leave.*begins with '<s>T"):
        trainer.train()


def test_the_trainer_s_own_arguments_are_no_options() -> None:
    with pytest.raises(UsageError, match="seed is the trainer's"):
        Kept(seed=3)


@pytest.mark.slow
@pytest.mark.turn(3)
def test_the_engine_is_open_while_training_lasts(tmp_path: Path) -> None:
    opened: list[object] = []

    class Watched(Kept):
        def __call__(self, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
            drawn = super().__call__(prompts, trainer)
            assert is_lent(trainer.model)
            [live] = [each for each in trainer.callback_handler.callbacks
                      if isinstance(each, LiveEngine)]  # fmt: skip
            opened.append(live._llm)
            return drawn

    trainer = grpo(tmp_path, Watched(), max_steps=3)
    trainer.train()
    assert len(opened) == 3 and len({id(llm) for llm in opened}) == 1
    assert not is_lent(trainer.model)
    trainer.evaluate(trainer.train_dataset)
    assert len(opened) > 3 and not is_lent(trainer.model)


@pytest.mark.slow
@pytest.mark.turn(3)
def test_a_trainer_takes_the_module_of_one_that_was_interrupted(tmp_path: Path) -> None:
    class Interrupted(Kept):
        def __call__(self, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
            super().__call__(prompts, trainer)
            raise KeyboardInterrupt

    first = grpo(tmp_path, Interrupted())
    with pytest.raises(KeyboardInterrupt):
        first.train()
    assert is_lent(first.model)
    second = grpo(tmp_path, Kept(), model=first.model)
    second.train()
    assert not is_lent(first.model)


@pytest.mark.slow
@pytest.mark.turn(3)
def test_weights_that_were_moved_have_a_new_engine_opened(tmp_path: Path) -> None:
    opened: list[object] = []

    def moved() -> None:
        raise WeightsMovedError("the model's lm_head.weight was moved in memory")

    class Watched(Kept):
        def __call__(self, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
            for each in trainer.callback_handler.callbacks:
                if isinstance(each, LiveEngine) and each._llm is not None:
                    each._llm.weights_changed = moved  # type: ignore[method-assign]
            drawn = super().__call__(prompts, trainer)
            [live] = [each for each in trainer.callback_handler.callbacks
                      if isinstance(each, LiveEngine)]  # fmt: skip
            opened.append(live._llm)
            return drawn

    rollout = Watched()
    trainer = grpo(tmp_path, rollout)
    trainer.train()
    assert len(opened) == 2 and opened[0] is not opened[1]
    assert max(rollout.differences) < 1e-3
    assert not is_lent(trainer.model)


@pytest.mark.slow
@pytest.mark.turn(3)
def test_an_adapter_is_trained_over_a_base_that_stays(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    rollout = Kept()
    trainer = grpo(tmp_path, rollout, peft_config=adapter, learning_rate=1e-2)
    base = [each.clone() for each in trainer.model.parameters() if not each.requires_grad]
    trainer.train()
    assert len(rollout.drawn) == 2
    assert sum(rollout.differences) / len(rollout.differences) < 1e-5
    after = [each for each in trainer.model.parameters() if not each.requires_grad]
    assert all(a.equal(b) for a, b in zip(base, after, strict=True))


@pytest.mark.slow
def test_fifty_steps_take_no_more_memory_and_no_sequence_would_be_masked(tmp_path: Path) -> None:
    taken: list[int] = []

    class Watched(Kept):
        def __call__(self, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
            taken.append(psutil.Process().memory_info().rss)
            return super().__call__(prompts, trainer)

    rollout = Watched()
    grpo(tmp_path, rollout, max_steps=50).train()
    assert len(taken) == 50
    assert taken[-1] - taken[10] < 16 << 20  # a KV cache of 4 MiB a step would be 160
    assert max(rollout.differences) < 1e-3
    assert 0.99 < min(rollout.ratios) <= max(rollout.ratios) < 1.01  # TRL masks those above 3


@pytest.mark.slow
@pytest.mark.turn(3)
def test_weights_that_are_no_numbers_end_the_training_in_one_line(tmp_path: Path) -> None:
    trainer = grpo(tmp_path, Kept(), learning_rate=1e30, max_steps=4)
    with pytest.raises(SharegenError, match="NaN") as raised:
        trainer.train()
    assert "\n" not in str(raised.value)
    assert not is_lent(trainer.model)


@pytest.mark.slow
@pytest.mark.turn(3)
def test_a_run_that_is_resumed_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    prompts = tuple(f"Tom has {count}" for count in range(8))
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole, resumed = Kept(), Kept()
    grpo(tmp_path, whole, prompts, **settings).train()
    checkpoint = str(tmp_path / "out" / "checkpoint-2")
    grpo(tmp_path, resumed, prompts, **settings).train(resume_from_checkpoint=checkpoint)
    assert resumed.drawn == whole.drawn[2:]
