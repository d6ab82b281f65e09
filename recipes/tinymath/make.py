"""Make tinymath from nothing: problems, tokenizer, model, scores.

    python recipes/tinymath/make.py --out DIR

One model is trained and looked at several times on the way. It must be worth voting on: of the
looks, the one is kept whose single samples are right often but not nearly always, and whose vote
mends the rest (`choose`). A few minutes on an H200; the seed is fixed, so that data, tokenizer,
initial weights and the order of training are always the same (sums on a GPU may still differ in
their last bits). DIR then holds what ships beside this script: `train.jsonl`, `test.jsonl`,
`model/` and `scores.json`, from which README.md takes its numbers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# From a checkout the package is found without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sharegen.recipes.tinymath.corpus import FEW_SHOT, ROW, VOCABULARY, RowMaker, train_tokenizer
from sharegen.recipes.tinymath.evaluate import Score, score
from sharegen.recipes.tinymath.problems import (
    Problem,
    held_out,
    training_examples,
    validation,
    write_jsonl,
)

SEED = 0
LOOKS = (0.4, 0.7, 1.0)  # shares of the training after which it is evaluated
TEMPERATURES = (0.7, 0.8, 1.0)

LEARNING_RATE = 1.5e-3
WARM_UP = 200  # steps
DECAY = 0.2  # share of the training over which the rate falls to zero at the end
WEIGHT_DECAY = 0.05
QUESTION_WEIGHT = 0.1  # of a question's token in the loss: its numbers cannot be predicted

# What a single sample may score, with a margin inside 35% to 80%, and the vote's gain aimed at.
SINGLE = (0.40, 0.75)
GAIN = 0.15


@dataclass(frozen=True)
class Look:
    """The scores of the model after `step` steps at one temperature."""

    step: int
    loss: float
    score: Score


def choose(looks: list[Look]) -> Look:
    """The look to keep: the best vote among those worth voting on.

    Worth voting on is a single accuracy within `SINGLE` and a gain of at least `GAIN`. If there is
    none, the largest gain within `SINGLE` wins, and if there is none of those, the look whose
    single accuracy is nearest to the middle of `SINGLE`.
    """
    within = [look for look in looks if SINGLE[0] <= look.score.single <= SINGLE[1]]
    worth = [look for look in within if look.score.gain >= GAIN]
    if worth:
        return max(worth, key=lambda look: look.score.vote)
    if within:
        return max(within, key=lambda look: look.score.gain)
    return min(looks, key=lambda look: abs(look.score.single - sum(SINGLE) / 2))


def model_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """4.2 million parameters with one KV head, for decoding is to be cheap on two CPU cores."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _causal_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Rows begin at position 0 and are padded at the end, so causality is all the mask needed."""
    query, key = query.to(value.dtype), key.to(value.dtype)
    out = F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


# Without a mask function of this name transformers builds no mask, and flash attention is used.
AttentionInterface.register("tinymath_causal", _causal_attention)


def _token_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), targets, reduction="none")


class Trainer:
    """The model in training: `steps` steps over the rows that other processes make."""

    def __init__(self, config: LlamaConfig, steps: int, device: str) -> None:
        torch.manual_seed(SEED)
        self.device = device
        self.config = config
        self.model = LlamaForCausalLM(config)
        self.model.to(device)  # type: ignore[arg-type]
        self.model.set_attn_implementation("tinymath_causal")
        self.token_losses = _token_losses
        if device == "cuda":
            torch.set_float32_matmul_precision("high")
            torch._dynamo.config.suppress_errors = True  # what does not compile runs as it is
            for layer in self.model.model.layers:
                layer.compile()  # one compilation, which all layers share
            self.token_losses = torch.compile(_token_losses)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=LEARNING_RATE,
            betas=(0.9, 0.98),
            weight_decay=WEIGHT_DECAY,
            fused=device == "cuda",
        )
        warm_up, decay = min(WARM_UP, steps), max(1, round(DECAY * steps))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: min((step + 1) / warm_up, 1.0, max(steps - step, 0) / decay),
        )

    def step(self, rows: np.ndarray, in_answer: np.ndarray) -> torch.Tensor:
        """One update; the loss stays on the device, so that nothing waits for it."""
        tokens = torch.from_numpy(rows.astype(np.int64)).to(self.device, non_blocking=True)
        answers = torch.from_numpy(in_answer).to(self.device, non_blocking=True)
        targets = tokens[:, 1:]
        weights = QUESTION_WEIGHT + (1 - QUESTION_WEIGHT) * answers[:, 1:].float()
        weights = weights * (targets != self.config.pad_token_id)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            hidden = self.model.model(tokens, use_cache=False).last_hidden_state[:, :-1]
            logits = self.model.lm_head(hidden)
        losses = self.token_losses(logits.flatten(0, 1), targets.flatten())
        loss = (losses * weights.flatten()).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.schedule.step()
        return loss.detach()

    def save_checkpoint(self, folder: Path) -> None:
        """Save the model as it ships: a copy in bfloat16."""
        copy = LlamaForCausalLM(self.config)
        copy.load_state_dict(self.model.state_dict())
        copy.bfloat16().save_pretrained(folder)


def train(
    trainer: Trainer, batches: Iterator[tuple[np.ndarray, np.ndarray]], steps: int
) -> Iterator[tuple[int, float]]:
    """Train to the end, yielding the step and the mean loss whenever a look is due."""
    due = sorted({max(1, round(share * steps)) for share in LOOKS})
    start, losses = time.monotonic(), []
    for step in range(1, steps + 1):
        losses.append(trainer.step(*next(batches)))
        if step % 100 == 0 or step in due:
            loss = torch.stack(losses).mean().item()
            print(f"step {step}  loss {loss:.4f}  {time.monotonic() - start:.0f} s", flush=True)
            losses = []
        if step in due:
            yield step, loss


def save(out: Path, step: int, scores: dict[str, Any], tar: Path) -> None:
    """Make the checkpoint of `step` the model, and pack all that ships into one file."""
    shutil.copytree(out / "checkpoints" / str(step), out / "model", dirs_exist_ok=True)
    (out / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    with tarfile.open(tar, "w") as archive:
        for name in ("train.jsonl", "test.jsonl", "scores.json", "model"):
            archive.add(out / name, arcname=name)


def table(looks: list[Look]) -> str:
    lines = ["step   loss    temperature  answered  single  vote   gain"]
    for look in looks:
        s = look.score
        lines.append(
            f"{look.step:<6} {look.loss:.4f}  {s.temperature:<11}  {s.answered:<8.1%}"
            f"  {s.single:<6.1%}  {s.vote:<5.1%}  {s.gain:+.1%}"
        )
    return "\n".join(lines)


def make(
    out: Path, tar: Path, steps: int, rows: int, problems: int, workers: int, device: str
) -> None:
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    training, test = training_examples(), held_out()
    write_jsonl(out / "train.jsonl", training)
    write_jsonl(out / "test.jsonl", test)
    examples, unseen = training[:FEW_SHOT], validation(problems)
    tokenizer = train_tokenizer(training)
    tokenizer.save_pretrained(out / "model")

    def evaluate(step: int, on: list[Problem]) -> list[Score]:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32  # as sharegen would
        checkpoint = out / "checkpoints" / str(step)
        model = LlamaForCausalLM.from_pretrained(checkpoint, dtype=dtype)
        model.to(device)  # type: ignore[arg-type]
        return [score(model, tokenizer, examples, on, t, SEED) for t in TEMPERATURES]

    # The processes are forked before CUDA is touched, which does not survive a fork.
    maker = RowMaker(out / "model" / "tokenizer.json", rows)
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        trainer = Trainer(model_config(tokenizer), steps, device)
        parameters = sum(p.numel() for p in trainer.model.parameters())
        print(f"{parameters / 1e6:.2f}M parameters, {rows * ROW} tokens a step", flush=True)
        scores: dict[str, Any] = {
            "seed": SEED,
            "steps": steps,
            "rows": rows,
            "row_tokens": ROW,
            "parameters": parameters,
            "few_shot": FEW_SHOT,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": torch.cuda.get_device_name() if device == "cuda" else device,
        }
        looks: list[Look] = []
        for step, loss in train(trainer, pool.imap(maker, range(steps)), steps):
            trainer.save_checkpoint(out / "checkpoints" / str(step))
            looks += [Look(step, loss, s) for s in evaluate(step, unseen)]
            print(table(looks[-len(TEMPERATURES) :]), flush=True)
            scores["looks"] = [asdict(look) for look in looks]
            if choose(looks).step == step:  # saved on the way, so that a cut run leaves a model
                scores["chosen"] = asdict(choose(looks))
                save(out, step, scores, tar)

    kept = choose(looks)
    scores["chosen"] = asdict(kept)
    scores["test"] = [asdict(s) for s in evaluate(kept.step, test[:problems])]
    scores["seconds"] = round(time.monotonic() - started)
    save(out, kept.step, scores, tar)
    print(f"\n{table(looks)}\n\nkept step {kept.step}; on the test problems:")
    print(table([Look(kept.step, kept.loss, Score(**s)) for s in scores["test"]]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Make tinymath's problems, tokenizer and model.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--tar", type=Path, help="also all of it as one file (DIR/tinymath.tar)")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rows", type=int, default=64, help="rows a step")
    parser.add_argument(
        "--problems", type=int, default=200, help="problems a look samples, and the test"
    )
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    tar = options.tar or options.out / "tinymath.tar"
    make(
        options.out,
        tar,
        options.steps,
        options.rows,
        options.problems,
        options.workers,
        options.device,
    )


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    transformers.utils.logging.disable_progress_bar()
    main()
