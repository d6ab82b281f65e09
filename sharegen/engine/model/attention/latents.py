"""Keys and values that are one latent for all heads, and how a model's attention shows them.

Multi-head latent attention (DeepSeek-V2, 2405.04434) makes a token's keys and values of one short
vector, its latent, by the linear layer `kv_b_proj`: of each head some numbers of a key and a value.
The rest of a key, which RoPE turns, all heads have in common. So latent and rest are all that needs
be kept of a token. The probe sees both go in and what comes out, and believes its eyes: where keys
and values are not what the layer makes of the latent, they are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sharegen.engine.model.interface import OWN_HEADS

SPREADING = "kv_b_proj"
"""What transformers' attention modules call the layer that spreads a latent out over heads."""

_ALIGNED = 16  # bytes: what the kernels load at a time


@dataclass(frozen=True)
class LatentSpec:
    """The latent of one layer's keys and values.

    rank: numbers of a latent. of_latent: of a head's key those that are made of it; the others,
    at the key's end, all heads have in common.
    """

    rank: int
    of_latent: int

    def width(self, key_size: int, dtype: torch.dtype) -> int:
        """Numbers that are kept of a token, padded so that each token begins aligned."""
        numbers = self.rank + key_size - self.of_latent
        each = max(1, _ALIGNED // dtype.itemsize)
        return -(-numbers // each) * each


class Spreads:
    """What the layers that spread latents out over heads were given, and what they made of it."""

    def __init__(self) -> None:
        self._last: dict[nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Open a block in which they are watched."""

        def note(module: nn.Module, args: tuple[Any, ...], out: torch.Tensor) -> None:
            if args and isinstance(args[0], torch.Tensor):
                self._last[module] = args[0], out

        with ExitStack() as undo:
            for module in model.modules():
                inner = getattr(module, SPREADING, None)
                if isinstance(inner, nn.Module):
                    undo.callback(inner.register_forward_hook(note).remove)
            try:
                yield
            finally:
                self._last.clear()

    def of(
        self, module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> LatentSpec | None:
        """The latent of a module's keys and values, where they are what was made of one.

        q: [1, heads, T, Dk]; k, v: [1, heads, T, *]. On the meta device shapes alone are looked at.
        """
        inner: Any = getattr(module, SPREADING, None)
        seen = self._last.pop(inner, None) if isinstance(inner, nn.Module) else None
        if seen is None or hasattr(module, OWN_HEADS) or not _is_plain(inner, q.dtype):
            return None
        _, heads, tokens, key_size = k.shape
        latent, out = seen
        of_latent = out.shape[-1] // heads - v.shape[-1]
        if (
            q.shape[1] != heads
            or inner.weight.shape != (heads * (of_latent + v.shape[-1]), latent.shape[-1])
            or not 0 < of_latent < key_size  # the rest says what is not finite
            or latent.numel() != tokens * latent.shape[-1]
            or out.numel() != tokens * out.shape[-1]
        ):
            return None
        spec = LatentSpec(latent.shape[-1], of_latent)
        if k.device.type == "meta":
            return spec
        made = out.view(tokens, heads, -1).transpose(0, 1)
        is_made = torch.equal(made[..., :of_latent], k[0, ..., :of_latent]) and torch.equal(
            made[..., of_latent:], v[0]
        )
        rest = k[0, ..., of_latent:]
        return spec if is_made and torch.equal(rest, rest[:1].expand_as(rest)) else None


def _is_plain(linear: Any, dtype: torch.dtype) -> bool:
    """Whether it multiplies by a weight of the model's dtype, and does nothing else."""
    weight = getattr(linear, "weight", None)
    return (
        isinstance(weight, torch.Tensor)
        and weight.dim() == 2
        and weight.dtype == dtype
        and type(linear) is nn.Linear
        and linear.bias is None
        and "forward" not in vars(linear)
    )
