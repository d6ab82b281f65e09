"""A job in the ways that may not change a bit of it, and how many of its lines did change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from sharegen.common.shard import Shard
from sharegen.job.run_job import run_job
from sharegen.workload.configuration import Configuration, resolve
from tests.tiny import tiny_tokenizer

KINDS = ("dense", "MoE", "hybrid")
WINDOWED = ("sinks", "soft caps")
"""gpt-oss and Gemma 2: every other layer has a sliding window, shorter than prompts."""
UNEQUAL = "unequal heads"
"""DeepSeek-V3: keys are longer than values, both are made of latents, and there are experts."""

RESULTS = "SHAREGEN_SAME_BITS"
"""Names a file to which each comparison is written as soon as it is made."""


@dataclass(frozen=True)
class Size:
    """The widths of models, and how much of a job there is.

    hidden, heads, kv_heads, head, wide: of attention and the MLP; experts, expert: how many and how
    wide. prompts, samples, tokens, words: of the job; rows: most, few and in between. window: of
    the layers that have one, in tokens. cache: bytes in which samples are preempted, by kind.
    """

    hidden: int
    heads: int
    kv_heads: int
    head: int
    wide: int
    experts: int
    expert: int
    prompts: int
    samples: int
    tokens: int
    words: int
    rows: tuple[int, int, int]
    window: int
    cache: dict[str, int]


REAL = Size(
    2048, 16, 4, 128, 8192, 64, 768, prompts=12, samples=96, tokens=40, words=30,
    rows=(1024, 64, 256), window=128,
    cache={
        "dense": 48 << 20, "MoE": 48 << 20, "hybrid": 4 << 30, "sinks": 48 << 20,
        "soft caps": 48 << 20, UNEQUAL: 240 << 20,
    },
)  # fmt: skip
TINY = Size(
    32, 4, 2, 8, 48, 4, 16, prompts=5, samples=7, tokens=28, words=4,
    rows=(64, 2, 8), window=16,
    cache={
        "dense": 9 << 13, "MoE": 9 << 13, "hybrid": 1 << 20, "sinks": 9 << 13,
        "soft caps": 9 << 13, UNEQUAL: 30 << 13,
    },
)  # fmt: skip


def config_of(kind: str, size: Size, **ids: Any) -> PretrainedConfig:
    """A config of four layers, or two where each attends."""
    of_all = {
        "hidden_size": size.hidden, "num_attention_heads": size.heads, "head_dim": size.head,
        "num_key_value_heads": size.kv_heads, "intermediate_size": size.wide,
        "num_hidden_layers": 4 if kind == "hybrid" else 2, "max_position_embeddings": 4096,
        "initializer_range": 0.05, **ids,
    }  # fmt: skip
    experts = {
        "num_experts": size.experts, "num_experts_per_tok": min(8, size.experts // 2),
        "moe_intermediate_size": size.expert,
    }  # fmt: skip
    if kind == "dense":
        return LlamaConfig(**of_all)
    if kind == "MoE":
        return Qwen3MoeConfig(**of_all, **experts)
    if kind == "sinks":
        return GptOssConfig(
            **of_all | {"intermediate_size": size.expert}, sliding_window=size.window,
            num_local_experts=size.experts, num_experts_per_tok=min(4, size.experts // 2),
        )  # fmt: skip
    if kind == "soft caps":
        return Gemma2Config(
            **of_all, sliding_window=size.window, query_pre_attn_scalar=size.head,
            attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
        )  # fmt: skip
    if kind == UNEQUAL:
        return DeepseekV3Config(
            **of_all | {"num_key_value_heads": size.heads, "head_dim": size.head // 2},
            moe_intermediate_size=size.expert,
            n_routed_experts=size.experts, num_experts_per_tok=min(8, size.experts // 2),
            n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=None,
            kv_lora_rank=4 * size.head, qk_nope_head_dim=size.head, v_head_dim=size.head,
            qk_rope_head_dim=size.head // 2,
        )  # fmt: skip
    return Qwen3NextConfig(
        **of_all, **experts, shared_expert_intermediate_size=size.expert,
        linear_num_value_heads=size.heads, linear_num_key_heads=size.heads // 2,
        linear_key_head_dim=size.head, linear_value_head_dim=size.head,
    )  # fmt: skip


def make_place(folder: Path, kind: str, size: Size, device: str, dtype: torch.dtype) -> Path:
    """A folder with a model of random weights, and rows that share few and many tokens."""
    tokenizer = tiny_tokenizer()
    config = config_of(
        kind, size, vocab_size=len(tokenizer), bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shared = "Some apples and some boxes stand in the market of the next town. " * size.words
    rows = [shared + f"Tom has {i} of them. {'How many? ' * (i % 5)}" for i in range(size.prompts)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": r}) + "\n" for r in rows))
    return folder


def job_of(place: Path, size: Size, samples: int, **machine: Any) -> Configuration:
    given = {
        "model": str(place),
        "sampling": {"samples": samples, "max_tokens": size.tokens, "temperature": 1.0},
        "machine": {"deterministic": True} | machine,
        "token_ids": True,
    }
    return resolve("prompts", str(place / "rows.jsonl"), given)


Put = Callable[[Path], str]
"""Draws a journal at a path in some way; returns what is to be said of it."""


def ways_of(place: Path, size: Size, cache: int, **machine: Any) -> dict[str, Put]:
    """The ways, of which the first is the one that others are compared with."""
    most, few, between = size.rows

    def at_once(path: Path, rows: int = most, **more: Any) -> str:
        run_job(job_of(place, size, size.samples, max_sequences=rows, **machine, **more), path)
        return f"{rows} rows"

    def killed_and_resumed(path: Path) -> str:
        at_once(path)
        keep_every_third_line(path)
        return at_once(path, between)

    def preempted(path: Path) -> str:
        job = job_of(
            place, size, size.samples, max_sequences=most, kv_cache_memory=cache, **machine
        )
        return f"{run_job(job, path).run.stats['preemptions']} preemptions"

    def extended(path: Path) -> str:
        for samples in (1, size.samples // 3, size.samples):
            run_job(job_of(place, size, samples, max_sequences=between, **machine), path)
        return "1, a third and all samples"

    def in_shards(path: Path) -> str:
        job = job_of(place, size, size.samples, max_sequences=between, **machine)
        parts = [run_job(job, path, shard=Shard(index, 2)).path for index in (1, 2)]
        path.write_text("".join(part.read_text() for part in parts))
        return "two shards"

    def all_of_it(path: Path) -> str:
        """Fewer rows, killed, then more samples with other rows and too little memory."""
        some = size.samples // 3
        run_job(job_of(place, size, some, max_sequences=few, **machine), path)
        keep_every_third_line(path)
        more = {"max_sequences": between, "kv_cache_memory": cache}
        outcome = run_job(job_of(place, size, size.samples, **more, **machine), path)
        return f"{few}, then {between} rows, {outcome.run.stats['preemptions']} preemptions"

    return {
        "at once": at_once, "all of it": all_of_it, "few rows": lambda path: at_once(path, few),
        "killed and resumed": killed_and_resumed, "preempted": preempted, "extended": extended,
        "in shards": in_shards,
    }  # fmt: skip


def keep_every_third_line(path: Path) -> None:
    """What is left of a journal whose run was killed early on."""
    path.write_text("".join(path.read_text().splitlines(keepends=True)[::3]))


def differing(wanted: Sequence[str], path: Path) -> int:
    """How many of a journal's lines are not the wanted ones, which are sorted."""
    found = lines(path)
    assert len(found) == len(wanted)
    return sum(a != b for a, b in zip(found, wanted, strict=True))


def first_difference(wanted: Sequence[str], path: Path) -> list[dict[str, Any]]:
    """Which samples have other bits, the token at which they part, and both log-probabilities.

    token: None where the tokens are the same, and only what they add up to is another.
    """
    found = []
    for a, b in zip(map(json.loads, wanted), map(json.loads, lines(path)), strict=True):
        if a != b:
            pairs = zip(a["token_ids"], b["token_ids"], strict=False)
            parts = [at for at, (one, other) in enumerate(pairs) if one != other]
            found.append({
                "sample": [a["problem_id"], a["sample"]], "token": parts[0] if parts else None,
                "logprobs": [a["cumulative_logprob"], b["cumulative_logprob"]],
            })  # fmt: skip
    return found


def lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines())


def tell(**found: Any) -> None:
    """Write it down now: who is stopped later loses nothing."""
    if RESULTS in os.environ:
        with open(os.environ[RESULTS], "a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
