"""The packaged rules know the names that occur; a user's own come first."""

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.timeline.classes import classifier
from harness.traces.rules import load_rules

# As profilers write them: CUDA's libraries, torch's own kernels, vLLM's, FlashInfer's, Triton's, ROCm's, AITER's, a
# CPU's operations, and this project's.
NAMES = {
    "linear": [
        "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0_MHA_MLA_RoPE",
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_relu_f2f_stages_32x6_tn",
        "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
        "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float>",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>",
        "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 1>(int, int, int)",
        "void marlin::Marlin<__nv_bfloat16, 256, 1, 8, 8, 4, 8>", "fused_moe_kernel",
        "_ZN5aiter40bf16gemm_fp32bf16_tn_96x64_splitk_cleanE", "aten::addmm", "aten::mm", "_C::onednn_mm",
        "harness::linear", "gemv_rows<bf16>(Gemv<bf16>, int)", "gemv", "add_splits",
    ],
    "attention": [
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, cutlass::bfloat16_t>>",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>>",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<2, 8, 16>", "kernel_unified_attention_2d",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16>", "_ZN5aiter26fmha_fwd_hd128_bf16_causalE",
        "_ZN5aiter17mla_a16w16_qh16_m1E", "void fmha_cutlassF_bf16_aligned_64x64_rf_sm80(Params)",
        "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_softmax", "attend_split<bf16>(Attention<bf16>)",
        "_C::cpu_attention_with_kv_cache", "combine",
    ],
    "linear-attention": [
        "fused_recurrent_gated_delta_rule_fwd_kernel", "_causal_conv1d_update_kernel", "chunk_fwd_kernel_o",
        "_selective_scan_update_kernel", "l2norm_fwd_kernel", "void update_state<bf16>(GatedDelta<bf16>)", "step",
        "merge_16x16_to_64x64_inverse_kernel", "fused_gdn_gating_kernel", "vllm::cpu_gdn_attention_core",
    ],
    "norm": [
        "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)",
        "std::enable_if<(8>(0)), void>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>",
        "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>", "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", "rmsnorm",
        "_ZN5aiter24add_rmsnorm_quant_kernelE",
    ],
    "rope": [
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "triton_poi_fused_add_cos_sin_0",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true>", "qk_norm_rope_cache",
    ],
    "kv-write": [
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "void vllm::concat_and_cache_mla_kernel<float>",
        "_C::cpu_attn_reshape_and_cache", "vllm::unified_kv_cache_update", "write_places",
    ],
    "elementwise": [
        "void vllm::act_and_mul_kernel<c10::BFloat16>", "triton_poi_fused_silu_mul_1",
        "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float>>",
        "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
        "void at::native::(anonymous namespace)::indexSelectSmallIndex<float>", "aten::silu", "aten::view", "silu_mul",
        "void vllm::moe::topkGatingSoftmax<4, 128, 4>", "void vllm::moe::moe_align_block_size_kernel<int>",
        "aten::embedding", "aten::add", "aten::empty_strided",
    ],
    "sampling": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native::ArgMaxOps<float>>>",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>", "aten::argmax",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", "aten::multinomial",
        "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<int>",
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", "c10d::allreduce_",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<2>",
        "_ZN5aiter20reduce_scatter_crossE", "rcclGenericKernel",
    ],
    "memcpy": [
        "Memcpy DtoD (Device -> Device)", "Memset (Device)", "HostToDevice", "__amd_rocclr_copyBuffer", "aten::copy_",
        "__amd_rocclr_fillBufferAligned.kd", "CopyDeviceToHost",
    ],
    "other": ["vector_add_kernel(float const*, float const*, float*, int)", "properties_of_europe"],
}  # fmt: skip


@pytest.fixture(scope="module")
def class_of():
    return classifier(load_rules())


@pytest.mark.parametrize(("kernel_class", "name"), [(of, name) for of, names in NAMES.items() for name in names])
def test_names_that_occur(class_of, kernel_class: str, name: str) -> None:
    assert class_of(name) == kernel_class


def test_a_users_own_rules_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    own = tmp_path / "configs" / "kernel_classes.yaml"
    own.write_text("rules:\n  - {kernel_class: sampling, names: [vector_add, '^gemv$']}\n")
    monkeypatch.chdir(tmp_path)
    class_of = classifier(load_rules())
    assert [class_of(name) for name in ("vector_add_kernel", "gemv", "gemv_rows<bf16>")] == [
        "sampling",
        "sampling",
        "linear",
    ]
    own.write_text("rules:\n  - {kernel_class: sampling, names: ['(']}\n")
    with pytest.raises(ConfigError, match=r"kernel_classes.yaml:2: .*not a regular expression"):
        load_rules()
    own.write_text("rules:\n  - {kernel_class: gemm, names: [a]}\n")
    with pytest.raises(ConfigError, match=r"kernel_classes.yaml:2: .*kernel_class"):
        load_rules()
