"""The engine over a trainer's module: opened at its first rollout, closed when training ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Self
from weakref import WeakValueDictionary

from transformers import TrainerCallback

from sharegen.common.log import log
from sharegen.engine.core.random_key import row_key
from sharegen.engine.core.request import SamplingParams
from sharegen.errors import RequestError, SharegenError, WeightsMovedError
from sharegen.llm import LLM
from sharegen.outputs import RequestOutput
from sharegen.trl.settings import mismatches

_open: WeakValueDictionary[int, LiveEngine] = WeakValueDictionary()
"""The engine that has a module, by the module's id: a trainer that was interrupted leaves its own
open, and the next one over the same module closes it."""


class RolloutError(SharegenError):
    """A completion that a trainer cannot learn from: the model's logits were no distribution."""


def _refuse_too_long(prompts: Sequence[list[int]], llm: LLM) -> None:
    """Raise RequestError for a prompt that leaves no room, by its text: a trainer shuffles them."""
    longest = max(prompts, key=len)
    if len(longest) >= llm.context_length:
        text = llm.get_tokenizer().decode(longest[:40])[:80]
        raise RequestError(
            f"a prompt has {len(longest):,} tokens and the model's context {llm.context_length:,}: "
            f"leave it out of the dataset; it begins with {text!r}"
        )


class LiveEngine(TrainerCallback):
    """One trainer's engine, which the trainer itself holds, among its callbacks.

    options: what LLM takes beside the module and its tokenizer. sleeps: whether it gives its memory
        back between rollouts.
    """

    def __init__(self, options: Mapping[str, Any], sleeps: bool) -> None:
        self._options = options
        self._sleeps = sleeps
        self._llm: LLM | None = None
        self._step = 0  # that the engine's weights are of
        self._trains = False
        self._drawn: Counter[tuple[int, bool]] = Counter()  # rollouts, by step and mode

    @classmethod
    def of(cls, trainer: Any, options: Mapping[str, Any], sleeps: bool) -> Self:
        """The trainer's own, made at its first rollout."""
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, cls):
                return callback
        made = cls(options, sleeps)
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
        """Sample prompts of token ids from the module as it is now."""
        self._trains, step = trainer.is_in_train, trainer.state.global_step
        try:
            llm = self._up_to_date(trainer, step)
            _refuse_too_long(prompts, llm)
            asked = [{"prompt_token_ids": ids} for ids in prompts]
            outputs = llm.generate(asked, list(params), use_tqdm=False)  # type: ignore[arg-type]
            samples = chain.from_iterable(each.outputs for each in outputs)
            if failed := next((each.error for each in samples if each.error), None):
                raise RolloutError(f"a completion of step {step} failed: {failed}")
            if self._sleeps:
                llm.sleep()
            return outputs
        except BaseException:
            self.close()
            raise

    def _up_to_date(self, trainer: Any, step: int) -> LLM:
        """An engine that is awake and computes with the weights of this step."""
        if self._llm is not None:
            self._llm.wake_up()
            try:
                if step != self._step:
                    self._llm.weights_changed()
            except WeightsMovedError:
                log("the trainer has moved weights in the GPU's memory: a new engine is opened")
                self.close()
        if self._llm is None:
            self._llm = self._opened(trainer)
        self._step = step
        return self._llm

    def _opened(self, trainer: Any) -> LLM:
        module = trainer.accelerator.unwrap_model(trainer.model)
        if (other := _open.get(id(module))) is not None:
            other.close()
        _open[id(module)] = self
        for line in mismatches(trainer, module, self._options.get("dtype", "auto")):
            log(line)
        return LLM(
            module,
            tokenizer=trainer.processing_class,
            logprobs_mode="processed_logprobs",
            **self._options,
        )

    def close(self) -> None:
        """Give the module back, and the engine's memory; the next rollout opens another one."""
        if self._llm is not None:
            self._llm.close()
            self._llm = None

    # -- the trainer's events -------------------------------------------------------------------

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.close()

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        if not self._trains:
            self.close()
