"""Our decode step of the gated delta rule for GPUs (kernels/gated_delta_rule/gpu.cu)."""

from __future__ import annotations

import torch

from harness.backends.base import (
    DeltaInputs,
    DeltaState,
    DeltaWeights,
    Executor,
    Launch,
    LinearAttentionBackend,
    Support,
)
from harness.backends.launch import GPU_KERNEL_DTYPES, bind_gpu_kernel, gpu_kernel_support
from harness.backends.linear_attention.torch_recurrent import state_and_weight_bytes
from harness.backends.registry import linear_attention_backend
from harness.backends.scratch import Scratch
from harness.gpu_build import load_gpu_kernel
from harness.kernel_build import kernel_source
from harness.specs.device import DeviceInfo
from harness.specs.problem import DeltaProblem

MAX_HEAD_DIM = 256


@linear_attention_backend("gpu-recurrent")
class GpuRecurrent(LinearAttentionBackend):
    """CUDA/HIP kernel for one token: convolution, rule and gated norm in two launches, the state in place."""

    contest_legal = True

    def __init__(self, executor: Executor) -> None:
        self._executor, self.scratch = executor, Scratch()
        source = kernel_source("gated_delta_rule", "gpu.cu")
        self._library = load_gpu_kernel(source, executor.device.arch or "")

    @staticmethod
    def supports(problem: DeltaProblem, device: DeviceInfo) -> Support:
        p = problem
        if p.m != 1:
            return Support.no(f"it takes one token, not {p.m}", "use triton-delta, or torch-recurrent")
        if p.num_value_heads % p.num_key_heads:
            heads = f"{p.num_value_heads} value heads do not divide among {p.num_key_heads} key heads"
            return Support.no(heads, "correct the model's configuration")
        if max(p.key_head_dim, p.value_head_dim) > MAX_HEAD_DIM or p.value_head_dim % 4:
            dims = f"{p.key_head_dim} x {p.value_head_dim}"
            what = f"heads of {dims}: up to {MAX_HEAD_DIM}, values a multiple of 4"
            return Support.no(what, "use torch-recurrent")
        return gpu_kernel_support(p.dtype, device)

    def read_bytes(self, problem: DeltaProblem) -> int:
        return state_and_weight_bytes(problem)

    def bind(
        self, inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, out: torch.Tensor, problem: DeltaProblem
    ) -> Launch:
        p, rows = problem, (inputs.qkv, inputs.z, inputs.b, inputs.a)
        scratch = self.scratch.floats(p.num_value_heads * p.value_head_dim, out.device)
        sizes = (p.m, p.num_key_heads, p.num_value_heads // p.num_key_heads, p.key_head_dim, p.value_head_dim)
        arguments: tuple[torch.Tensor | int | float | None, ...] = (
            *rows, *(row.stride(0) for row in rows), weights.conv, weights.a_log, weights.dt_bias, weights.norm,
            weights.eps, state.conv, state.recurrent, out, *sizes, p.conv_kernel, scratch,
        )  # fmt: skip
        kernel = f"gated_delta_rule_{GPU_KERNEL_DTYPES[p.dtype]}"
        return bind_gpu_kernel(self._library, kernel, arguments, self._executor)
