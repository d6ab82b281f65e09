"""On a GPU in the deterministic mode: one journal, byte for byte, whatever the batch was."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig, Qwen3NextConfig

from sharegen.engine.config import EngineConfig
from sharegen.engine.core.lengths import Lengths
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.load import load_model
from sharegen.job.interrupt import Interrupted
from sharegen.job.run_job import run_job
from sharegen.job.watcher import Watcher
from sharegen.workload.configuration import Configuration, resolve
from tests.tiny import tiny_tokenizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

_SIZES: dict[str, Any] = {
    "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 64, "max_position_embeddings": 4096, "initializer_range": 0.05,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
}
CONFIGS = {
    "dense": lambda **ids: LlamaConfig(**_SIZES, intermediate_size=5632, **ids),
    "MoE": lambda **ids: Qwen3MoeConfig(**_SIZES, **_EXPERTS, intermediate_size=1024, **ids),
    "hybrid": lambda **ids: Qwen3NextConfig(
        **_SIZES, **_EXPERTS, intermediate_size=1024, shared_expert_intermediate_size=256,
        linear_num_value_heads=8, linear_num_key_heads=4, **ids,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=CONFIGS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of one kind, and rows that share few and many tokens."""
    folder = tmp_path_factory.mktemp("bits")
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    config = CONFIGS[request.param](
        vocab_size=len(tokenizer), bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shared = "Some apples and some boxes stand in the market of the next town. " * 30
    rows = [shared + f"Tom has {i} of them. {'How many? ' * (i % 5)}" for i in range(12)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": r}) + "\n" for r in rows))
    return folder


def configure(folder: Path, samples: int = 96, **machine: Any) -> Configuration:
    given = {
        "model": str(folder),
        "sampling": {"samples": samples, "max_tokens": 40, "temperature": 1.0},
        "machine": {"device": "cuda", "dtype": "bfloat16", "deterministic": True} | machine,
        "token_ids": True,
    }
    return resolve("prompts", str(folder / "rows.jsonl"), given)


class _Impatient(Watcher):
    """Presses Ctrl-C when so many samples have come."""

    class _Count:
        def __init__(self) -> None:
            self.left = 300

        def advance(self, tokens: int, done: bool) -> None:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

        def save(self, *args: Any) -> None:
            pass

    def sampling(self, *args: Any) -> Any:
        @contextmanager
        def counting() -> Iterator[_Impatient._Count]:
            yield self._Count()

        return counting()


def lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines())


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
def test_a_journal_is_the_same_whatever_the_batch_was(
    place: Path, fp8: bool, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"quantization": "fp8", "kv_cache_dtype": "fp8"} if fp8 else {}
    run_job(configure(place, max_sequences=1024, **how), tmp_path / "1024.jsonl")
    wanted = lines(tmp_path / "1024.jsonl")
    assert len(wanted) == 12 * 96
    differing: dict[str, int] = {}

    def note(name: str, path: Path) -> None:
        found = lines(path)
        assert len(found) == len(wanted)
        differing[name] = sum(a != b for a, b in zip(found, wanted, strict=True))

    run_job(configure(place, max_sequences=64, **how), tmp_path / "64.jsonl")
    note("64 rows", tmp_path / "64.jsonl")

    resumed = tmp_path / "resumed.jsonl"
    with pytest.raises(Interrupted):
        run_job(configure(place, max_sequences=256, **how), resumed, watcher=_Impatient())
    run_job(configure(place, max_sequences=128, **how), resumed)
    note("stopped and resumed, 256 and 128 rows", resumed)

    small = tmp_path / "small.jsonl"
    outcome = run_job(configure(place, max_sequences=1024, kv_cache_memory=24 << 20, **how), small)
    note(f"{outcome.run.stats['preemptions']} preemptions", small)

    more = tmp_path / "more.jsonl"
    run_job(configure(place, samples=30, max_sequences=512, **how), more)
    run_job(configure(place, max_sequences=512, **how), more)
    note("samples extended", more)
    assert not any(differing.values()), differing


def test_pool_sizes_and_orders_of_arrival(place: Path) -> None:
    """A fuzz: every sample has its bits in an engine of any size, whatever comes first."""
    rng = random.Random(0)
    shared = [rng.randrange(5, 300) for _ in range(900)]
    params = SamplingParams(max_tokens=60, temperature=1.0)
    requests = []
    for i in range(40):
        own = [rng.randrange(5, 300) for _ in range(rng.randrange(1, 200))]
        prompt = shared[: rng.choice([0, 300, 900])] + own
        requests.append(Request(i, prompt, params, range(rng.choice([1, 2, 7, 30]))))
    seen: dict[tuple[int, int], tuple[list[int], float]] = {}
    differing = set()
    for turn in range(4):
        config = EngineConfig(
            max_sequences=rng.choice([16, 100, 500]) if turn else 1024,
            kv_cache_memory=rng.choice([24, 40, 200]) << 20 if turn else 1 << 30,
            prefill_tokens=rng.choice([1024, 2000, 8192]),
            swap_space=rng.choice([0.0, 0.25]) if turn else 0.0,
            deterministic=True,
        )
        model = load_model(str(place), device="cuda", dtype="bfloat16")
        engine = Engine(model, None, config)
        rng.shuffle(requests)
        for done in engine.generate(requests, lengths=Lengths(ended=Counter({2: 1 << 20}))):
            found = done.token_ids, done.cumulative_logprob
            key = done.request.key, done.sample
            if seen.setdefault(key, found) != found:
                differing.add(key)
        engine.close()
    assert not differing, f"{len(differing)} of {len(seen)}"
