"""What the experiments of ChunkAttention have in common."""

from __future__ import annotations

from benchmarks.papers.experiment import Paper

CHUNK_ATTENTION = Paper(
    "ChunkAttention: Efficient Self-Attention with Prefix-Aware KV Cache and Two-Phase Partition",
    "2402.15220",
)
