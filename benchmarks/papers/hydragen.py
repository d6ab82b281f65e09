"""The paper that several experiments are of."""

from __future__ import annotations

from benchmarks.papers.experiment import Paper

HYDRAGEN = Paper("Hydragen: High-Throughput LLM Inference with Shared Prefixes", "2402.05099")
