"""How often one sample is right, and how often the vote is: what the checkpoint is chosen by."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from .corpus import prompt
from .problems import Problem

SAMPLES = 20
MAX_TOKENS = 128
BATCH = 100  # problems decoded at once
_ANSWER = re.compile(r"#### (\d+)")


@dataclass(frozen=True)
class Score:
    """Accuracies over `problems` problems: of a sample on average, and of the majority."""

    temperature: float
    problems: int
    samples: int
    answered: float  # share of samples that give a number at all
    single: float
    vote: float

    @property
    def gain(self) -> float:
        return self.vote - self.single


def score(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    examples: list[Problem],
    problems: list[Problem],
    temperature: float,
    seed: int,
) -> Score:
    """Sample every problem after the examples, as the recipe does."""
    torch.manual_seed(seed)
    right = answered = voted = 0
    for start in range(0, len(problems), BATCH):
        batch = problems[start : start + BATCH]
        texts = _sample(model, tokenizer, [prompt(examples, p) for p in batch], temperature)
        for problem, completions in zip(batch, texts, strict=True):
            found = [_ANSWER.search(text) for text in completions]
            numbers = [int(match[1]) for match in found if match]
            answered += len(numbers)
            right += numbers.count(problem.number)
            # Counter keeps the order of first appearance, so ties go to the earliest sample.
            voted += bool(numbers) and Counter(numbers).most_common(1)[0][0] == problem.number
    total = len(problems) * SAMPLES
    return Score(
        temperature=temperature,
        problems=len(problems),
        samples=SAMPLES,
        answered=answered / total,
        single=right / total,
        vote=voted / len(problems),
    )


@torch.inference_mode()
def _sample(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    temperature: float,
) -> list[list[str]]:
    """`SAMPLES` completions of each prompt, each up to the empty line that ends an answer."""
    inputs = tokenizer(prompts, return_tensors="pt", padding=True).to(model.device)
    (line_end,) = tokenizer("\n\n", add_special_tokens=False).input_ids
    output = model.generate(  # type: ignore[misc]
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        num_return_sequences=SAMPLES,
        max_new_tokens=MAX_TOKENS,
        eos_token_id=[tokenizer.eos_token_id, line_end],
        pad_token_id=tokenizer.pad_token_id,
    )
    texts = tokenizer.batch_decode(output[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    return [texts[i : i + SAMPLES] for i in range(0, len(texts), SAMPLES)]
