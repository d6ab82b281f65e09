"""sharegen: offline batch generation for language models when prompts share text."""

import os
from typing import TYPE_CHECKING, Any

from sharegen.version import __version__

if TYPE_CHECKING:
    from sharegen.common.structured import StructuredOutputsParams
    from sharegen.engine.request import BeamSearchParams, SamplingParams
    from sharegen.llm import LLM

# With Intel's BLAS, whether a product's inner dimension is split over threads depends on how many
# rows it has; in this mode it does not, so that a sequence's tokens never depend on its batch.
# It must stand before the first matrix product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# torch's CPU threads spin while they wait for each other. A decode step is hundreds of small
# operations, so next to any other program they would mostly wait. Read by OpenMP when torch is
# imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = [
    "LLM", "BeamSearchParams", "SamplingParams", "StructuredOutputsParams", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load the API on first use: the command line's help must not wait for torch."""
    if name == "LLM":
        from sharegen.llm import LLM

        return LLM
    if name in ("BeamSearchParams", "SamplingParams"):
        from sharegen.engine import request

        return getattr(request, name)
    if name == "StructuredOutputsParams":
        from sharegen.common.structured import StructuredOutputsParams

        return StructuredOutputsParams
    raise AttributeError(f"module 'sharegen' has no attribute {name!r}")
