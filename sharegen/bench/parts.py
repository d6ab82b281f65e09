"""Which part of a decoding step a kernel belongs to, by its name.

Kernels of ours have names of their own; those of libraries, and those that the compiler writes and
names after their operators, are told apart by the words in them. The first part whose word is found
counts, so what is fused counts where it costs most: a gate between experts' products with these, a
norm of heads with the rotation behind it. On a CPU the names are operators'; there what sampling
sorts counts as experts', and the two phases of attention are one part.
"""

from __future__ import annotations

from functools import cache

_WORDS = {
    "shared": ("_shared_kernel",),
    "suffix": ("_suffix_kernel", "_merge_kernel", "_merge_rows_kernel", "_latent_kernel"),
    "store": ("_store_kernel", "_store_fp8_kernel", "_rotate_and_store_kernel"),
    "sampling": (
        "_pieces_kernel", "_threshold_kernel", "_survivors_kernel", "_pick_kernel",
        "_penalise_kernel", "_segments_kernel",
    ),
    "ranks": ("nccl", "all_reduce"),
    "attention": (
        "_scaled_dot_product", "_causal_kernel", "_absolute_kernel", "_beginnings_kernel",
    ),
    "mixers": (
        "_step_kernel", "_start_kernel", "_own_kernel", "_settle_kernel", "_chunk_kernel",
        "conv1d", "delta_rule", "selective_scan", "aten::convolution",
    ),
    "expert_products": (
        "GroupProblemShape", "_groups_kernel", "aten::_grouped_mm", "_scaled_grouped_mm",
    ),
    "experts": (
        "grouped_mm", "topk", "TopK", "sort", "Sort", "gather", "scatter", "index", "histc",
        "Histogram", "DeviceScan", "cumsum", "aten::one_hot",
    ),
    "products": (
        "gemm", "Gemm", "nvjet", "cutlass", "cublas", "splitK", "_gated_product_kernel",
        "_product_kernel", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "_scaled_mm",
        "mkldnn",
    ),
    "quantising": ("_rows_kernel", "_group_scales_kernel", "_amax_", "float8"),
    "rope": ("_rotate_kernel", "_cat_", "_neg_", "aten::neg", "aten::cat", "_cos_", "_sin_"),
    "norms": ("rsqrt", "norm", "_mean_", "_pow_", "aten::mean", "aten::pow"),
    "gates": ("silu", "gelu", "_gate_kernel", "sigmoid", "tanh", "softplus"),
}  # fmt: skip

PARTS = (*_WORDS, "rest")


@cache
def part_of(kernel: str) -> str:
    """One of `PARTS`."""
    return next((p for p, words in _WORDS.items() if any(w in kernel for w in words)), "rest")
