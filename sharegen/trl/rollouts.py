"""TRL's `rollout_func` over an engine of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sharegen.errors import UsageError
from sharegen.outputs import CompletionOutput
from sharegen.trl.live import LiveEngine
from sharegen.trl.prompts import Prompt, grouped
from sharegen.trl.settings import refuse, sampling

_OURS = ("model", "tokenizer", "seed", "device", "logprobs_mode")


class Rollout:
    """A `rollout_func` whose engine has options of its own; `rollout` is the one without any.

        GRPOTrainer(..., rollout_func=Rollout(max_sequences=256))

    sleep: whether the engine gives the memory of its KV cache and CUDA graphs back between
        rollouts, for the trainer; without it the next rollout begins at once.
    options: what `LLM` takes beside the model, its tokenizer and seed, which are the trainer's.

    Raises UsageError, at the first rollout, for a trainer that it does not serve, and RolloutError
    where the weights have become no numbers.
    """

    def __init__(self, *, sleep: bool = True, **options: Any) -> None:
        if wrong := [name for name in options if name in _OURS]:
            raise UsageError(f"{wrong[0]} is the trainer's: leave it out of Rollout")
        self._options, self._sleep = options, sleep

    def __call__(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, list[Any]]:
        """Draw one completion for each of the prompts, in their order.

        Returns `prompt_ids`, `completion_ids` (with the EOS or stop token that ended one) and
        `logprobs`: of each drawn token, natural logarithm, under the distribution that it was drawn
        from, after temperature and filters.
        """
        refuse(trainer)
        live = LiveEngine.of(trainer, self._options, self._sleep)
        groups = grouped(prompts, trainer)
        wanted = replace(sampling(trainer), seed=live.seed(trainer))
        params = [replace(wanted, n=len(group.places)) for group in groups]
        outputs = live.generate(trainer, [group.token_ids for group in groups], params)
        drawn: list[Any] = [None] * len(prompts)
        for group, output in zip(groups, outputs, strict=True):
            for place, sample in zip(group.places, output.outputs, strict=True):
                drawn[place] = group.token_ids, sample.token_ids, _logprobs(sample)
        prompt_ids, completion_ids, logprobs = (list(each) for each in zip(*drawn, strict=True))
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


rollout = Rollout()
"""TRL's `rollout_func`: `GRPOTrainer(..., rollout_func=rollout)`."""


def _logprobs(sample: CompletionOutput) -> list[float]:
    noted = sample.completion.logprobs
    assert noted is not None
    return [each.logprob for each in noted]
