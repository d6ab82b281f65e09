"""An LLM over a module that trains on a GPU: graphs stay, copies follow, and memory comes back."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from sharegen import LLM
from tests.test_llm_live import generated, loss, tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("brief_collections"),  # engines that sleep ask for them
]

MEMORY = 256 << 20
KINDS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "compiled": (torch.float32, {}),
    "its own weights": (torch.float32, {"compile": False}),
    "copies in bfloat16": (torch.float32, {"compile": False, "dtype": "bfloat16"}),
    "copies in FP8": (torch.bfloat16, {"compile": False, "quantization": "fp8"}),
}


def module(dtype: torch.dtype) -> PreTrainedModel:
    """Wide enough for FP8, on the GPU and in train mode."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2, head_dim=64,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, initializer_range=0.1,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).to("cuda", dtype).train()


def loss_there(model: Any) -> torch.Tensor:
    with torch.device("cuda"):
        return loss(model)


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_stay_where_weights_change_and_copies_follow(kind: str) -> None:
    dtype, options = KINDS[kind]
    model = module(dtype)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    with LLM(model, kv_cache_memory=MEMORY, **options) as llm:
        first = tokens(llm)
        graphs: Any = llm.engine.runner.graphs  # type: ignore[union-attr]
        captured = dict(graphs._graphs)
        assert captured
        loss_there(model).backward()
        with llm.changing_weights():
            optimiser.step()
        second = tokens(llm)
        assert graphs is llm.engine.runner.graphs  # type: ignore[union-attr]
        assert all(graphs._graphs[key] is each for key, each in captured.items())
        assert len(graphs._graphs) == len(captured)
    with LLM(model, kv_cache_memory=MEMORY, **options) as anew:
        assert tokens(anew) == second != first
    if kind in ("compiled", "its own weights"):
        with torch.device("cuda"):
            assert generated(model) == second


def test_an_engine_that_sleeps_gives_its_memory_back_and_leaves_gradients_alone() -> None:
    model = module(torch.float32)
    loss_there(model).backward()
    before = [weight.grad.clone() for weight in model.parameters()]
    taken = torch.cuda.memory_allocated()
    with LLM(model, kv_cache_memory=MEMORY, compile=False) as llm:
        first = tokens(llm)
        assert torch.cuda.memory_allocated() - taken >= MEMORY * 0.9
        for _ in range(2):
            llm.sleep()
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()  # 32 MiB of the library's for each stream
            assert torch.cuda.memory_allocated() - taken < 32 << 20
            model.zero_grad()
            alive = loss_there(model)
            llm.wake_up()
            assert tokens(llm) == first
            alive.backward()  # over what the call has left of the graph
            for weight, was in zip(model.parameters(), before, strict=True):
                torch.testing.assert_close(weight.grad, was)
