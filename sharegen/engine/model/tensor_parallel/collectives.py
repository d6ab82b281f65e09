"""What makes the shards of several ranks one model: sums and gathered tensors around its modules.

They are forward hooks, which the model's own code and torch.compile take as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from sharegen.engine.model.fp8.products import FP8Linear
from sharegen.engine.model.interface import OWN_HEADS
from sharegen.engine.model.tensor_parallel.ranks import Ranks, share
from sharegen.engine.model.tensor_parallel.sharding_plan import (
    Gather,
    LookUp,
    OverAllHeads,
    Spread,
    Sum,
    TensorParallelPlan,
)


def install_collectives(model: PreTrainedModel, plan: TensorParallelPlan, ranks: Ranks) -> None:
    """Install what the plan says around the modules of a rank's shard."""
    for path, collective in plan.collectives.items():
        module: Any = model.get_submodule(path)
        match collective:
            case Sum():
                _sum(module, ranks)
            case Gather(length):
                _gather(module, length, ranks)
            case LookUp(length):
                owner = model.get_submodule(path.rpartition(".")[0])
                setattr(owner, path.rpartition(".")[2], _Embedding(module, length, ranks))
            case OverAllHeads(heads):
                _see_all_heads(module, heads, ranks)
            case Spread(pieces):
                _spread(module, model.get_submodule(path.rpartition(".")[0]), pieces, ranks)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape


def _sum(module: nn.Module, ranks: Ranks) -> None:
    if type(module) is nn.Linear and module.bias is None:
        module.forward = lambda x: ranks.linear_sum(x, module.weight)  # type: ignore[method-assign]
        return
    if type(module) is FP8Linear and module.bias is None:
        module.forward = lambda x: ranks.fp8_linear_sum(  # type: ignore[method-assign]
            x, module.weight, module.weight_scale
        )
        return

    def hook(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        return ranks.all_reduce(out)

    module.register_forward_hook(hook)


def _gather(module: nn.Module, length: int, ranks: Ranks) -> None:
    def hook(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        return ranks.gather_last(out, length)

    module.register_forward_hook(hook)


class _Embedding(nn.Module):
    """Looks up the tokens that the rank has; those of the others are zeros in its sum."""

    def __init__(self, inner: Any, length: int, ranks: Ranks) -> None:
        super().__init__()
        self.inner = inner
        self.ranks = ranks
        self.first, self.count = share(length, ranks.rank, ranks.size)
        inner.padding_idx = None  # a matter of training, and of the whole table's rows
        inner.num_embeddings = self.count

    @property
    def weight(self) -> torch.Tensor:
        return self.inner.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Look up the tokens' rows, of which each rank has some: [..., T] gives [..., T,
        hidden].
        """
        own = input_ids - self.first
        has = (own >= 0) & (own < self.count)
        out = self.inner(own.clamp(0, self.count - 1))
        return self.ranks.all_reduce(out.masked_fill(~has[..., None], 0))


def _see_all_heads(module: nn.Module, heads: int, ranks: Ranks) -> None:
    first, count = share(heads, ranks.rank, ranks.size)
    copies = max(1, ranks.size // heads)  # ranks that have the same head

    def gather(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0]
        every = ranks.gather_last(x, x.shape[-1] * ranks.size)
        if copies > 1:
            every = every.unflatten(-1, (heads, copies, -1))[..., 0, :].flatten(-2)
        return (every, *args[1:])

    def keep(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out.unflatten(-1, (heads, -1)).narrow(-2, first, count).flatten(-2)

    module.register_forward_pre_hook(gather)
    module.register_forward_hook(keep)


def _spread(
    module: nn.Module, attention: nn.Module, pieces: tuple[tuple[int, int], ...], ranks: Ranks
) -> None:
    shares = [share(heads, ranks.rank, ranks.size) for _, heads in pieces]
    sizes = [length // heads for length, heads in pieces]
    own = [count * size for (_, count), size in zip(shares, sizes, strict=True)]
    margins = [
        (first * size, (heads - first - count) * size)
        for (first, count), size, (_, heads) in zip(shares, sizes, pieces, strict=True)
    ]

    def hook(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        shards = [
            nn.functional.pad(shard, margin)
            for shard, margin in zip(out.split(own, -1), margins, strict=True)
        ]
        return torch.cat(shards, -1)

    module.register_forward_hook(hook)
    setattr(attention, OWN_HEADS, (shares[0], shares[1]))
