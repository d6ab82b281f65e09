"""transformers' own continuous batching over the module that was trained, for the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from benchmarks.measurement import Peer
from sharegen.common.log import log

_WARM = 8  # prompts of a first call, and tokens of each: kernels are loaded


def generate_batch(module: Any, prompts: Sequence[list[int]], tokens: int, of: int) -> Peer | None:
    """Draw from each of the prompts, the equal ones of a group among them.

    tokens: that are drawn of each. of: that a rollout draws of each. What is told is the pace of a
    rollout, from the seconds until every sequence has its first token and the pace after that,
    which is the peer's best: it falls as sequences grow. What it takes to warm up is left out.

    Returns None where not every sequence came back whole.
    """
    import transformers
    from transformers import GenerationConfig

    module.eval()
    for given, length in ((prompts[:_WARM], _WARM), (prompts, tokens)):
        config = GenerationConfig(
            max_new_tokens=length, do_sample=True, temperature=1.0, top_k=0, eos_token_id=-1,
            pad_token_id=0,
        )  # fmt: skip
        found = list(
            module.generate_batch(
                list(given), generation_config=config, record_timestamps=True
            ).values()
        )
        whole = sum(len(each.generated_tokens) == length for each in found)
        if whole < len(given):  # another call would take as much memory again
            log(f"generate_batch gave {whole} of {len(given)} sequences whole: it is left out")
            return None
    begun = min(each.created_time for each in found)
    times = [[time - begun for time in each.timestamps] for each in found]
    return Peer(
        name="transformers",
        version=transformers.__version__,
        mode="generate_batch",
        tokens_per_second=len(prompts) * of / extrapolated(times, of),
        sitting="same",
        note=(
            f"{len(prompts)} sequences of {tokens} tokens, taken on to {of} at their last pace; "
            f"{'with' if _has_flash_attention() else 'without'} flash-attn"
        ),
    )


def extrapolated(times: Sequence[Sequence[float]], of: int) -> float:
    """Seconds until sequences had `of` tokens each. times: when each had its tokens so far."""
    filled = max(each[0] for each in times)
    ended = max(each[-1] for each in times)
    late = sum(time > filled for each in times for time in each)
    left = of * len(times) - sum(map(len, times)) + late
    return filled + left * (ended - filled) / late if late else ended


def _has_flash_attention() -> bool:
    return find_spec("flash_attn") is not None or find_spec("flash_attn_interface") is not None
