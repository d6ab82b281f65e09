"""sharegen: offline batch generation for language models when prompts share text."""

from __future__ import annotations

import os as _os
import sys as _sys
from importlib import import_module as _import_module

from sharegen.version import __version__

TYPE_CHECKING = False  # typing's, without the time in which Ctrl-C would end in a traceback
if TYPE_CHECKING:
    from typing import Any

    from sharegen.common.structured import StructuredOutputsParams
    from sharegen.engine.core.request import BeamSearchParams, SamplingParams
    from sharegen.llm import LLM
    from sharegen.outputs import (
        BeamSearchOutput,
        BeamSearchSequence,
        CompletionOutput,
        Logprob,
        RequestOutput,
    )

# With Intel's BLAS, whether a product's inner dimension is split over threads depends on how many
# rows it has; in this mode it does not, so that a sequence's tokens never depend on its batch.
# It must stand before the first matrix product.
_os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# torch's CPU threads spin while they wait for each other. A decode step is hundreds of small
# operations, so next to any other program they would mostly wait. Read by OpenMP when torch is
# imported.
_os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = [
    "LLM", "BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence", "CompletionOutput",
    "Logprob", "RequestOutput", "SamplingParams", "StructuredOutputsParams", "__version__",
]  # fmt: skip

_HOMES = {
    "LLM": "sharegen.llm",
    "BeamSearchParams": "sharegen.engine.core.request",
    "SamplingParams": "sharegen.engine.core.request",
    "StructuredOutputsParams": "sharegen.common.structured",
}
"""Where the API's names are; the outputs, which are the others, are in `sharegen.outputs`."""


def __getattr__(name: str) -> Any:
    """Load the API on first use: the command line's help need not wait for it."""
    if name not in __all__:
        said = f"module 'sharegen' has no attribute {name!r}"
        raise AttributeError(said, name=name, obj=_sys.modules[__name__])
    return getattr(_import_module(_HOMES.get(name, "sharegen.outputs")), name)


def __dir__() -> list[str]:
    """The API, loaded or not."""
    return sorted(__all__)
