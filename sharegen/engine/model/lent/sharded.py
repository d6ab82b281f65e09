"""A module of which each process of a trainer has a part is no module to sample from.

FSDP and DeepSpeed's ZeRO-3 bring a layer's weights together for the moment in which it runs, on all
processes at once, and an engine runs other batches on each. They are known by what they leave on a
module, so that neither is imported here.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from sharegen.errors import ModelError

_WHAT_TO_DO = (
    "no process has all of its weights: train it whole on each GPU (DDP, or ZeRO-2), or save it in "
    "a folder and give that to an LLM of its own"
)


def refuse_sharded(model: Any) -> None:
    """Raise ModelError for a module, or a wrapper around one, that is cut among processes."""
    by = sharded_by(model) if isinstance(model, nn.Module) else None
    if by is not None:
        raise ModelError(f"model {type(model).__name__} is sharded by {by}, and {_WHAT_TO_DO}")


def sharded_by(model: nn.Module) -> str | None:
    """What cuts the module among processes; None where nothing does."""
    for part in model.modules():
        kinds = {kind.__name__ for kind in type(part).__mro__}
        if kinds & {"FullyShardedDataParallel", "FSDPModule"} or getattr(
            part, "_is_fsdp_managed_module", False
        ):
            return "FSDP"
    for weight in model.parameters():
        if hasattr(weight, "ds_id"):
            return "DeepSpeed's ZeRO-3"
        if any(kind.__name__ == "DTensor" for kind in type(weight).__mro__):
            return "torch (DTensor)"
        if any(kind.__name__ == "DTensor" for kind in type(weight.data).__mro__):
            return "torch (DTensor)"
    return None
