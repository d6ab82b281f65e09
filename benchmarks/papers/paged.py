"""The paper that the experiments on blocks are of."""

from __future__ import annotations

from benchmarks.papers.experiment import Paper

PAGED_ATTENTION = Paper(
    "Efficient Memory Management for Large Language Model Serving with PagedAttention",
    "2309.06180",
)
