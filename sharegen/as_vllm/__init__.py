"""A program that was written for vLLM, run with sharegen in vLLM's place.

    python -m sharegen.as_vllm SCRIPT.py ARGS
    python -m sharegen.as_vllm -m MODULE ARGS

In that process, and there alone, `import vllm` finds a module of ours with the names that clients
import. What sharegen has not is refused by name, with what to use. Nothing is installed under
vLLM's name, and processes that the program starts are as ever.
"""

from __future__ import annotations

from sharegen.as_vllm.imports import stand_in

__all__ = ["stand_in"]
