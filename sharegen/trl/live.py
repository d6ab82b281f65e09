"""The engine over a trainer's module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from torch import nn
from transformers import TrainerCallback

from sharegen.engine.core.random_key import row_key
from sharegen.engine.core.request import SamplingParams
from sharegen.llm import LLM
from sharegen.outputs import RequestOutput


class LiveEngine(TrainerCallback):
    """One trainer's engine, which the trainer itself holds, among its callbacks.

    options: what LLM takes beside the module and its tokenizer.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._drawn: Counter[tuple[int, bool]] = Counter()  # rollouts, by step and mode

    @classmethod
    def of(cls, trainer: Any, options: Mapping[str, Any]) -> Self:
        """The trainer's own, made at its first rollout."""
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, cls):
                return callback
        made = cls(options)
        trainer.add_callback(made)
        return made

    def seed(self, trainer: Any) -> int:
        """The seed of the next rollout.

        It depends on the trainer's seed, process and step, on whether it trains or evaluates, and
        on how many such rollouts the step has had: a run that was resumed draws what it would have
        drawn.
        """
        step, evaluates = trainer.state.global_step, not trainer.model.training
        drawn = self._drawn[step, evaluates]
        self._drawn = Counter({key: n for key, n in self._drawn.items() if key[0] == step})
        self._drawn[step, evaluates] += 1
        process = trainer.args.seed + trainer.accelerator.process_index
        return row_key(process, step, 2 * drawn + evaluates)

    def generate(
        self, trainer: Any, prompts: Sequence[list[int]], params: Sequence[SamplingParams]
    ) -> list[RequestOutput]:
        """Sample prompts of token ids from the module as it is now; it keeps its modes."""
        module = trainer.accelerator.unwrap_model(trainer.model)
        tokenizer = trainer.processing_class
        with _modes_kept(module), LLM(module, tokenizer=tokenizer, **self._options) as llm:
            asked = [{"prompt_token_ids": ids} for ids in prompts]
            return llm.generate(asked, list(params), use_tqdm=False)  # type: ignore[arg-type]


@contextmanager
def _modes_kept(module: nn.Module) -> Iterator[None]:
    """Each part of the module comes back in the mode, train or eval, in which it is now."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
