"""A model's forward by itself, to see whether it runs, how long it takes and how much memory.

There is no KV cache, and a stand-in for attention, whose cost depends on prompts not known yet.
"""

from __future__ import annotations

import torch

from sharegen.engine.execute.attention import active
from sharegen.engine.model.load import LoadedModel


@torch.inference_mode()
def trial_forward(model: LoadedModel, tokens: int, rows: int) -> torch.Tensor:
    """The model over `tokens` tokens -> logits [rows, vocab_size]; rows may be more than tokens.

    Ids and positions differ from token to token, as far as vocabulary and context go.
    """
    index = torch.arange(tokens, device=model.device)
    with active(_ValuesOnly()):
        return model.forward(
            index % model.vocab_size,
            index % model.context_length,
            torch.arange(rows, device=model.device) % tokens,
        )


class _ValuesOnly:
    """The stand-in for attention: every token sees only itself."""

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
