"""What the deterministic mode asks of a device and a model: the same bits whatever runs beside a
sample.

The mode decides all that decides about the order of sums by what a sample has above it, never by
the batch: attention's tile and cuts (`kernels/attention_plan.py`), what is read per sequence
(`PrefixCache`), where chunks of prompts begin (`PrefillQueue`), that ranks' numbers are added up in
the order of the ranks, and that a preempted sample gets its KV as it was. On a CPU in float32 that
holds without it, up to so many threads, but for prompts of a step that found no memory.
"""

from __future__ import annotations

import warnings

import torch

from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.states.first_forms import installed_kernels
from sharegen.errors import UsageError

MOST_THREADS = 2
"""Of an engine on a CPU, up to which torch rounds a row alike among any number of others."""

_SEEN_PACKAGES = ("fla",)  # whose kernels of states gave the same bits in any batch on a GPU

_HOPPER = (9, 0)

_CAPABILITY = (8, 0)  # the first with products of bfloat16 in the tensor cores


def check_deterministic(model: LoadedModel) -> None:
    """Raise UsageError where the mode cannot hold; warn of what it does not hold for."""
    if model.device.type != "cuda":
        if model.dtype != torch.float32:
            name = str(model.dtype).removeprefix("torch.")
            raise UsageError(
                f"deterministic: a CPU rounds products of {name} by how many rows there are: give "
                "--dtype float32, or leave it out"
            )
        return
    major, minor = torch.cuda.get_device_capability(model.device)
    if (major, minor) < _CAPABILITY:
        raise UsageError(
            f"deterministic: this GPU (sm_{major}{minor}) has no kernels whose bits do not depend "
            "on the batch: leave it out, or use a GPU of sm_80 or later"
        )
    packages = [name for name in installed_kernels() if name not in _SEEN_PACKAGES]
    if model.mixers and packages:
        warnings.warn(
            f"deterministic: kernels of {' and '.join(packages)} compute the states of this "
            "model's mixers, and their bits may depend on the batch: samples may differ between "
            "two runs",
            stacklevel=4,
        )


def check_any_tree(model: LoadedModel, deterministic: bool) -> None:
    """Raise UsageError where bits cannot be free of the job's tree; warn where little was seen."""
    if not deterministic:
        raise UsageError("any_tree: it is a step beyond the deterministic mode: give both")
    if model.mixers:
        raise UsageError(
            "any_tree: where the scans of this model's states are cut depends on the job's tree: "
            "leave it out"
        )
    if model.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(model.device)
        if (major, minor) != _HOPPER:
            warnings.warn(
                f"any_tree: no card of this kind (sm_{major}{minor}) has shown that bits do not "
                "depend on the job's tree: samples may differ between two runs",
                stacklevel=4,
            )
