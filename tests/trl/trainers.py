"""GRPO over the tiny random model, with sharegen's rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sharegen.trl import Rollout
from tests.tiny import save_tiny_model

MEMORY = 1 << 22


class Kept(Rollout):
    """A rollout that keeps what it drew, and how far its log-probabilities are from a forward.

    differences: for each token, of the module itself as it is at the rollout, in float32 and with
        the trainer's temperature. ratios: of the probabilities of whole completions.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(kv_cache_memory=MEMORY, **options)
        self.drawn: list[dict[str, list[Any]]] = []
        self.differences: list[float] = []
        self.ratios: list[float] = []

    def __call__(self, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
        drawn = super().__call__(prompts, trainer)
        self.drawn.append(drawn)
        for each in zip(*drawn.values(), strict=True):
            prompt, completion, logprobs = each
            ids = torch.tensor([[*prompt, *completion]])
            with torch.no_grad():
                logits = trainer.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
            every = (logits / trainer.temperature).log_softmax(-1)
            found = every[range(len(completion)), completion]
            difference = found - torch.tensor(logprobs)
            self.differences += difference.abs().tolist()
            self.ratios.append(difference.sum().exp().item())
        return drawn


def grpo(folder: Path, rollout: Any, prompts: Any = ("1 2 3", "Tom has", "Answer:"),
         model: Any = None, peft_config: Any = None, **settings: Any) -> Any:  # fmt: skip
    """A trainer of 2 steps, each of 2 prompts and 4 completions; the reward is their length."""
    from datasets import Dataset  # with pandas, which no other test needs
    from trl import GRPOConfig, GRPOTrainer

    save_tiny_model(folder)
    if model is None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    values = {
        "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 12,
        "max_steps": 2, "learning_rate": 1e-3, "report_to": [], "use_cpu": True, "bf16": False,
        "save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False,
    } | settings  # fmt: skip
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda completion_ids, **_: [float(len(set(ids))) for ids in completion_ids],
        args=GRPOConfig(output_dir=str(folder / "out"), **values),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=AutoTokenizer.from_pretrained(folder),
        rollout_func=rollout,
        peft_config=peft_config,
    )
