"""What the bits of samples depend on beside the job: the card, and all that computes on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from sharegen.common.log import log

if TYPE_CHECKING:
    import torch

KERNELS = Path(__file__).parents[1] / "kernels"

_LIBRARIES = {"cublas": ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13")}
_COMPARED = ("card", "driver", "torch", "triton", "cuda", "cublas", "kernels")


def arithmetic(device: torch.device) -> dict[str, str]:
    """The card, its driver, CUDA, cuBLAS and sharegen's kernels; nothing on a CPU."""
    import torch

    if device.type != "cuda":
        return {}
    found = {"card": torch.cuda.get_device_name(device), "kernels": kernels_version()}
    if driver := _driver():
        found["driver"] = driver
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    for name, packages in _LIBRARIES.items():
        for package in packages:
            try:
                found[name] = metadata.version(package)
                break
            except metadata.PackageNotFoundError:  # another of its names, or torch's own copy
                continue
    return found


def kernels_version() -> str:
    """A hash of the kernels' sources, which versions of the package between releases share."""
    digest = hashlib.blake2b(digest_size=6)
    for source in sorted(KERNELS.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """What of it is another than it was, in words; None where nothing is, or nothing is known."""
    phrases = [
        f"{name} {before[name]}, now {now[name]}"
        for name in _COMPARED
        if name in before and name in now and before[name] != now[name]
    ]
    return "; ".join(phrases) or None


def log_other_bits(path: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Say what of an earlier run makes samples on record that this one would draw otherwise.

    Args:
        path: the journal that has them.
        before: what that run computed with, as `arithmetic` tells it; now: this one.
    """
    other = changed(before, now)
    if other is not None:
        log(
            f"{path}: was drawn with {other}: what is drawn from now on may have other "
            "bits than it would have had there"
        )


def _driver() -> str | None:
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
