"""Which keys of a job the command line has flags for."""

from __future__ import annotations

FLAGS = {
    "model": "--model",
    "revision": "--revision",
    "dataset.revision": "--dataset-revision",
    "dataset.source": "--dataset",
    "dataset.limit": "--limit",
    "few_shot.k": "--few-shot",
    "sampling.samples": "--samples",
    "sampling.temperature": "--temperature",
    "sampling.top_p": "--top-p",
    "sampling.top_k": "--top-k",
    "sampling.max_tokens": "--max-tokens",
    "sampling.stop": "--stop",
    "sampling.seed": "--seed",
    "sampling.stop_when": "--stop-when",
    "machine.dtype": "--dtype",
    "machine.quantization": "--quantization",
    "machine.max_sequences": "--max-sequences",
    "machine.kv_cache_memory": "--kv-cache-memory",
    "machine.kv_cache_dtype": "--kv-cache-dtype",
    "machine.swap_space": "--swap-space",
    "machine.block_size": "--block-size",
    "machine.workers": "--workers",
    "machine.ray": "--ray",
    "machine.tensor_parallel_size": "--tensor-parallel-size",
}
"""The keys that a flag of their own can set to what is wrong -> the flag; others go by --set."""
