"""Parts of a model on several ranks: they draw the tokens that one process draws."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from sharegen.engine.model import interface
from sharegen.engine.model.checkpoint.source import load_config, locate
from sharegen.engine.model.load import load_model, load_random_shard
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.self_check import DenseContext
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.engine.model.tensor_parallel.sharding_plan import DIVISIBLE
from tests.engine.rank_processes import on_ranks
from tests.engine.tiny_models import CUT_IN_FOUR, TINY, make_tiny, tiny_config

NEW_TOKENS = 8
PROMPTS = ([5, 17, 93, 40, 8, 61, 99, 23, 71, 12, 3, 55], [90, 4, 33], [7])
CUT = sorted(name for name, (kind, _) in TINY.items() if kind in DIVISIBLE)
# What those of the table do not have: weights that both ends of a model share, biases everywhere,
# a vocabulary and an MLP that no number of ranks divides, experts beside gemma4's MLP.
_UNEVEN = {"vocab_size": 131, "intermediate_size": 50, "tie_word_embeddings": True}
ODD: dict[str, dict[str, Any]] = {
    "llama": _UNEVEN | {"attention_bias": True, "mlp_bias": True},
    "phi3": _UNEVEN,
    "gemma4": {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
               "moe_intermediate_size": 16, "tie_word_embeddings": True},
}  # fmt: skip


def greedy(loaded: LoadedModel) -> tuple[list[list[int]], torch.Tensor]:
    """(tokens of each prompt, the logits that the last ones were drawn from)."""
    rows = [list(prompt) for prompt in PROMPTS]
    for _ in range(NEW_TOKENS):
        sequence = torch.cat([torch.full((len(row),), i) for i, row in enumerate(rows)])
        position = torch.cat([torch.arange(len(row)) for row in rows])
        ends = torch.tensor([len(row) for row in rows]).cumsum(0) - 1
        context = DenseContext(loaded.layers, sequence, position)
        with torch.inference_mode(), interface.active(context):
            logits = loaded.forward(torch.tensor([*chain(*rows)]), position, ends)
        for row, token in zip(rows, logits.argmax(-1).tolist(), strict=True):
            row.append(token)
    return rows, logits.clone()


def greedy_of_parts(ranks: Ranks, folder: str, names: list[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        found[name] = greedy(load_model(f"{folder}/{name}", device="cpu", ranks=ranks))
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    for name in CUT:
        make_tiny(name).save_pretrained(folder / name)
    for name, changes in ODD.items():
        make_odd(name, changes).save_pretrained(folder / f"{name}-odd")
    return folder


def make_odd(name: str, changes: dict[str, Any]) -> PreTrainedModel:
    config = tiny_config(name)
    for key, value in changes.items():
        setattr(config, key, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases and norms, which are made of one number
                parameter.data.add_(torch.randn_like(parameter) / 4)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "names"),
    [(2, CUT[::4]), (2, CUT), (4, CUT_IN_FOUR)],
    ids=["some in two", "all in two", "four"],
)
@pytest.mark.turn(3)
def test_parts_draw_the_tokens_of_one_process(saved: Path, size: int, names: Sequence[str]) -> None:
    names = [*names, *(f"{name}-odd" for name in ODD)]
    parts = on_ranks(size, greedy_of_parts, str(saved), names)
    for name in names:
        whole = load_model(saved / name, device="cpu")
        tokens, logits = greedy(whole)
        for part in parts:
            assert part[name][0] == tokens, name
            assert torch.equal(part[name][1], parts[0][name][1]), name
            assert (part[name][1] - logits).abs().max() <= 1e-4, name


DENSE = LlamaConfig(
    vocab_size=16_000, hidden_size=768, intermediate_size=3072, num_hidden_layers=8,
    num_attention_heads=12, num_key_value_heads=4,
)  # fmt: skip
EXPERTS = MixtralConfig(
    vocab_size=8000, hidden_size=512, intermediate_size=1024, num_hidden_layers=3,
    num_attention_heads=8, num_key_value_heads=4, num_local_experts=20,
)  # fmt: skip

_READING = """
import sys, torch
from pathlib import Path
from sharegen.engine.model.checkpoint.source import load_config, locate
from sharegen.engine.model.checkpoint.weights import build_on_meta
from sharegen.engine.model.tensor_parallel.shard import read_own_shards
from sharegen.engine.model.tensor_parallel.load_shard import plan_shards
from sharegen.engine.model.tensor_parallel import fp8_shards
from sharegen.engine.model.fp8 import quantising
from sharegen.engine.model.tensor_parallel.ranks import Ranks

def resident(key):
    status = Path("/proc/self/status").read_text()
    return int(status.split(key + ":")[1].split()[0]) * 1024

source = locate(sys.argv[1])
config, dtype = load_config(source), getattr(torch, sys.argv[2])
whole = build_on_meta(source, config, dtype)
plan = plan_shards(whole, source.name, 4)
fp8 = quantising.places(whole, plan.shards_of) if sys.argv[3] == "fp8" else []
quantising._PIECE = 2**18  # these weights are smaller than a piece
fp8_shards._of_whole_rows = lambda *_: None  # the other ranks are not there
Path("/proc/self/clear_refs").write_text("5")  # the peak is what it is now
before = resident("VmRSS")
ranks = Ranks(2, 4, torch.device("cpu"))
part = read_own_shards(source, config, type(whole), dtype, plan, ranks, fp8)
print(resident("VmHWM") - before, sum(p.nbytes for p in part.parameters()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("config", "largest", "dtype", "quantization"),
    [
        (DENSE, "80MB", "float32", "none"),
        (DENSE, "80MB", "bfloat16", "none"),
        (DENSE, "80MB", "bfloat16", "fp8"),
        (EXPERTS, "30MB", "bfloat16", "none"),
        (EXPERTS, "30MB", "bfloat16", "fp8"),
    ],
    ids=["dense-float32", "dense-bfloat16", "dense-fp8", "experts-bfloat16", "experts-fp8"],
)
@pytest.mark.turn(5)
def test_reading_holds_a_part_and_one_file(
    tmp_path: Path, config: PreTrainedConfig, largest: str, dtype: str, quantization: str
) -> None:
    """Experts that are stored one by one, too, of which all of a layer are one parameter."""
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path, max_shard_size=largest)
    files = [file.stat().st_size for file in tmp_path.glob("*.safetensors")]
    assert len(files) >= 4
    run = subprocess.run(
        [sys.executable, "-c", _READING, str(tmp_path), dtype, quantization],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    peak, part = map(int, run.stdout.split())
    assert part <= sum(files) / 4 * 1.01
    assert peak <= part + max(files)
    assert peak < sum(files) / 2


def random_weights(ranks: Ranks, folder: str) -> dict[str, torch.Tensor]:
    config = load_config(locate(folder))
    model = load_random_shard(config, "qwen3_moe", torch.float32, ranks).model
    return dict(model.named_parameters()) | dict(model.named_buffers())


@pytest.mark.slow
def test_random_parts_are_drawn_like_a_whole_and_share_what_is_not_cut(tmp_path: Path) -> None:
    whole = make_tiny("qwen3_moe")
    whole.save_pretrained(tmp_path)
    first, second = on_ranks(2, random_weights, str(tmp_path))
    assert first.keys() == second.keys()
    expected = dict(whole.named_parameters()) | dict(whole.named_buffers())
    for name, one in first.items():
        other, like = second[name], expected[name.replace(".inner.", ".")]
        if one.shape == like.shape:
            assert torch.equal(one, other), name
        else:
            assert not torch.equal(one, other), name
        if one.ndim == 1:  # norms and frequencies
            assert torch.equal(one, like), name
        else:
            assert one.std().item() == pytest.approx(like.std().item(), rel=0.3), name
