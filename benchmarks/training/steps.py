"""Steps of TRL's GRPOTrainer over a module whose rollouts are measured: `python -m benchmarks
training`.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

from benchmarks.measurement import Difference, Peer, Training
from benchmarks.training.noise import Drawn, differences, masked, trained
from benchmarks.training.peer import generate_batch
from sharegen.bench.shapes import random_model, vocabulary
from sharegen.common.log import log
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.model.checkpoint.source import resolve_device
from sharegen.errors import UsageError
from sharegen.llm import LLM
from sharegen.trl import Rollout
from sharegen.workload.recipe import RECIPES

_BUNDLED = RECIPES / "tinymath"
_SHARPENED = 4.0
"""Random weights draw nearly uniformly: the last norm is made so many times as large."""

_COMPARED = 32  # samples whose log-probabilities are computed in several ways
_LOOKED_AT = 256  # of each step, whether TRL would mask them
_SETTLED = 3  # steps after which memory should not grow


@dataclass(frozen=True)
class TrainingSettings:
    """What is to be measured.

    model: a folder of a model with its tokenizer, or a shape, whose weights are random. prompts,
    length, samples, output: of a step; the prompts of a model that has weights are the bundled
    problems, as long as they are. batch: sequences of a forward of the trainer. peer: tokens a
    sample that transformers' generate_batch draws of as many sequences, 0 for none. autocast:
    whether a module in float32 is trained under autocast to the dtype, in which the rollout has
    copies of its weights. second_engine: whether the last rollout is drawn again by an engine that
    has a copy of the module, as engines beside a trainer do.
    """

    model: str
    prompts: int = 64
    length: int = 300
    samples: int = 8
    output: int = 512
    steps: int = 3
    batch: int = 8
    peer: int = 64
    dtype: str = "bfloat16"
    device: str = "auto"
    fp32_head: bool = False
    compare: bool = True
    autocast: bool = False
    second_engine: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def has_weights(self) -> bool:
        return any(Path(self.model).glob("*.safetensors"))


@dataclass
class _Step:
    """What was measured of a step, in seconds and bytes; masked is of so many sequences."""

    rollout: float
    tokens: int
    sequences: int
    masked: int
    rollout_peak: int
    beside: float  # that comparing took
    trainer_peak: int = 0
    seconds: float = 0.0
    in_use: int = 0


@dataclass(frozen=True)
class Measured:
    """weights_bytes: of the module. tokens, seconds: of the rollouts of later steps, or of the one
    that there is."""

    training: Training
    weights_bytes: int
    tokens: int
    seconds: float
    peer: Peer | None


class _Watched(Rollout):
    """The rollout, with a clock; beside the first one log-probabilities are compared."""

    def __init__(self, asked: TrainingSettings, second: Any | None) -> None:
        options = asked.options | ({"dtype": asked.dtype} if asked.autocast else {})
        super().__init__(**options)
        self._asked = asked
        self._second = second
        self.steps: list[_Step] = []
        self.differences: list[Difference] = []
        self.second_peak: int | None = None

    def __call__(self, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
        _forget_peak()
        began = time.perf_counter()
        found = super().__call__(prompts, trainer)
        seconds, peak = time.perf_counter() - began, _peak()
        began = time.perf_counter()
        drawn = [Drawn(*each) for each in zip(*found.values(), strict=True)]
        some = drawn[:_LOOKED_AT]
        own = trained(trainer, some, self._asked.batch)
        out = masked(some, own, trainer.args.vllm_importance_sampling_clip_max)
        if self._asked.compare and not self.differences:
            self.differences += differences(trainer, drawn[:_COMPARED], self._asked.batch)
        if self._second is not None and len(self.steps) + 1 == self._asked.steps:
            tokenizer = trainer.processing_class
            self.second_peak = _second_peak(self._asked, self._second, tokenizer, drawn)
            self._second = None
        tokens = sum(len(each.completion) for each in drawn)
        beside = time.perf_counter() - began
        self.steps.append(_Step(seconds, tokens, len(some), out, peak, beside))
        _forget_peak()
        return found


def _second_peak(
    asked: TrainingSettings, module: Any, tokenizer: Any, drawn: Sequence[Drawn]
) -> int:
    """Bytes in use at most while an engine over a module of its own draws what was drawn."""
    prompts = [{"prompt_token_ids": each.prompt} for each in drawn[:: asked.samples]]
    params = SamplingParams(n=asked.samples, max_tokens=asked.output, ignore_eos=True)
    _forget_peak()
    with LLM(module.to(resolve_device(asked.device)), tokenizer, **asked.options) as llm:
        llm.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
    return _peak()


class _Clock(TrainerCallback):
    """Seconds and memory of whole steps, without what is compared beside them."""

    def __init__(self, watched: _Watched) -> None:
        self._watched = watched

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        step = self._watched.steps[-1]
        step.trainer_peak, step.in_use = _peak(), _in_use()
        step.seconds = time.perf_counter() - self._began - step.beside
        log(f"step {len(self._watched.steps)}: {step}")


def measure(asked: TrainingSettings) -> Measured:
    """Train for the steps that are asked for, then let transformers draw the same.

    Raises UsageError for a shape that is not known, and for float16 on a CPU.
    """
    device = resolve_device(asked.device)
    if asked.dtype == "float16" and device.type == "cpu":
        raise UsageError("--dtype float16 needs a GPU: accelerate has no such autocast on a CPU")
    module, tokenizer = _loaded(asked, device)
    weights = sum(weight.nbytes for weight in module.parameters())
    second: Any = copy.deepcopy(module).cpu() if asked.second_engine else None
    watched = _Watched(asked, second)
    del second
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(asked, module, tokenizer, watched, folder)
        trainer.train()
    training = _summary(watched)
    log(training.model_dump_json(exclude_defaults=True))  # it is there, whatever the peer does
    later = watched.steps[1:] or watched.steps
    peer = None
    if asked.peer:
        rows = trainer.train_dataset["prompt"]
        trainer.optimizer = None  # whose states would take the peer's memory
        trainer.accelerator.free_memory()
        module.zero_grad()
        ids = [_ids(row, tokenizer) for row in rows[: asked.prompts]]
        every = [each for each in ids for _ in range(asked.samples)]
        peer = generate_batch(module, every, asked.peer, asked.output)
    tokens, seconds = sum(each.tokens for each in later), sum(each.rollout for each in later)
    return Measured(training, weights, tokens, seconds, peer)


def _loaded(asked: TrainingSettings, device: torch.device) -> tuple[PreTrainedModel, Any]:
    dtype = torch.float32 if asked.autocast else getattr(torch, asked.dtype)
    if asked.has_weights:
        loaded: Any = AutoModelForCausalLM.from_pretrained(asked.model, dtype=dtype)
        return loaded.to(device), AutoTokenizer.from_pretrained(asked.model)
    tokenizer = AutoTokenizer.from_pretrained(_BUNDLED / "model")
    if vocabulary(asked.model) < len(tokenizer):
        raise UsageError(
            f"{asked.model} has a vocabulary of {vocabulary(asked.model)}: the bundled tokenizer "
            f"needs {len(tokenizer):,}"
        )
    module = random_model(asked.model, device, dtype)
    norms = [part for part in module.modules() if type(part).__name__.endswith("RMSNorm")]
    with torch.no_grad():
        norms[-1].weight.mul_(_SHARPENED)  # type: ignore[union-attr, operator]
    return module, tokenizer


def _trainer(
    asked: TrainingSettings, module: Any, tokenizer: Any, rollout: _Watched, folder: str
) -> Any:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    on_cpu = module.device.type == "cpu"
    config = GRPOConfig(
        output_dir=folder, max_steps=asked.steps, learning_rate=1e-6,
        per_device_train_batch_size=asked.batch,
        gradient_accumulation_steps=asked.prompts * asked.samples // asked.batch,
        num_generations=asked.samples, max_completion_length=asked.output,
        generation_kwargs=None if asked.has_weights else {"ignore_eos": True},
        cast_lm_head_to_fp32=asked.fp32_head, use_cpu=on_cpu,
        bf16=asked.autocast and asked.dtype == "bfloat16",
        fp16=asked.autocast and asked.dtype == "float16",
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=module,
        reward_funcs=_reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": each} for each in _prompts(asked, tokenizer)]),
        processing_class=tokenizer,
        rollout_func=rollout,
    )
    trainer.add_callback(_Clock(rollout))
    trainer.remove_callback(PrinterCallback)  # stdout is for what was measured
    return trainer


def _reward(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    return [float(sum(ids) % 97) for ids in completion_ids]


def _prompts(asked: TrainingSettings, tokenizer: Any) -> Iterator[Any]:
    """Texts, or conversations for a model that was made for them."""
    lines = (_BUNDLED / "train.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["question"] for line in lines]
    for index in range(asked.prompts):
        question = questions[index % len(questions)]
        if not asked.has_weights:
            ids: list[int] = []
            place = index
            while len(ids) < asked.length:
                ids += tokenizer(questions[place % len(questions)] + " ")["input_ids"]
                place += 7
            yield tokenizer.decode(ids[: asked.length])
        elif tokenizer.chat_template:
            yield [{"role": "user", "content": question}]
        else:
            yield f"Question: {question}\nAnswer:"


def _ids(prompt: Any, tokenizer: Any) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    said = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
    return list(said["input_ids"])


def _summary(watched: _Watched) -> Training:
    steps, later = watched.steps, watched.steps[1:]
    on_gpu = torch.cuda.is_available() and bool(steps[0].rollout_peak)
    grown = steps[-1].in_use - steps[_SETTLED - 1].in_use if len(steps) > _SETTLED else None
    return Training(
        steps=len(steps),
        first_rollout_seconds=steps[0].rollout,
        rollout_seconds=median(each.rollout for each in later) if later else None,
        step_seconds=median(each.seconds for each in later) if later else None,
        rollout_peak_bytes=max(each.rollout_peak for each in steps) if on_gpu else None,
        trainer_peak_bytes=max(each.trainer_peak for each in steps) if on_gpu else None,
        grown_bytes=grown,
        sequences=sum(each.sequences for each in steps),
        masked=sum(each.masked for each in steps),
        second_engine_peak_bytes=watched.second_peak if on_gpu else None,
        differences=tuple(watched.differences),
    )


def _in_use() -> int:
    """Bytes of the GPU's memory, or of the process's."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    import psutil

    return int(psutil.Process().memory_info().rss)


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def _forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
