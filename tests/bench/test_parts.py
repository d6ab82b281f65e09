"""Kernels as profiles of an H100 name them, each in its part."""

from __future__ import annotations

import pytest

from sharegen.bench.parts import PARTS, part_of


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_TNT", "products"),
        ("_gated_product_kernel", "products"),
        ("void cutlass::device_kernel<GemmUniversal<GroupProblemShape<Shape>>>", "expert_products"),
        ("_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm9x", "products"),
        ("void at::native::radixSortKVInPlace<-2, -1, 128, 32, long, long, unsigned>", "experts"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", "experts"),
        ("triton_poi_fused__grouped_mm_ge_masked_fill_mul_silu_split_transpose_15", "experts"),
        ("triton_poi_fused__to_copy_div_gather_ge_index_masked_fill_mul_sigmoid_sum", "experts"),
        ("triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_3", "norms"),
        ("triton_poi_fused__unsafe_view_add_cat_mul_slice_split_with_sizes_sub_0", "rope"),
        ("triton_poi_fused_mul_silu_split_2", "gates"),
        ("triton_poi_fused_gelu_mul_split_2", "gates"),
        ("_hopper_shared_kernel", "shared"),
        ("_latent_kernel", "suffix"),
        ("_merge_rows_kernel", "suffix"),
        ("_rotate_and_store_kernel", "store"),
        ("_rows_kernel", "quantising"),
        ("_group_scales_kernel", "quantising"),
        ("_pick_kernel", "sampling"),
        ("_own_kernel", "mixers"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ranks"),
        ("Memcpy DtoD (Device -> Device)", "rest"),
        ("triton_poi_fused_embedding_0", "rest"),
        ("aten::addmm", "products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
    ],
)
def test_a_kernel_is_in_its_part(kernel: str, part: str) -> None:
    assert part_of(kernel) == part and part in PARTS
