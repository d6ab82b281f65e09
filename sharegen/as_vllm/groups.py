"""What clients call when they have done with vLLM's process groups, before they let go of an LLM.

An LLM's groups are its own here and close with it (`LLM.close`, or as clients write it,
`del llm.llm_engine.model_executor`), so that there is none for these to destroy.
"""

from __future__ import annotations


def destroy_model_parallel() -> None:
    """Destroy the groups of ranks that belong to no LLM: there are none."""


def destroy_distributed_environment() -> None:
    """Destroy the process group that belongs to no LLM: there is none."""
