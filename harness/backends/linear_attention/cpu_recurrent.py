"""Our gated delta rule for CPUs (kernels/gated_delta_rule): the state read once and written once a token."""

from __future__ import annotations

from torch import Tensor

from harness.backends.base import (
    DeltaInputs,
    DeltaState,
    DeltaWeights,
    Executor,
    Launch,
    LinearAttentionBackend,
    Support,
)
from harness.backends.launch import KERNEL_DTYPES, bind_kernel, cpu_kernel_support
from harness.backends.linear_attention.torch_recurrent import state_and_weight_bytes
from harness.backends.registry import linear_attention_backend
from harness.kernel_build import kernel_source, load_kernel
from harness.specs.device import DeviceInfo
from harness.specs.problem import DeltaProblem

MAX_HEAD_DIM = 256


@linear_attention_backend("cpu-recurrent")
class CpuRecurrent(LinearAttentionBackend):
    """C++ kernel: convolution, rule and gated norm in one launch, key heads shared out over the threads."""

    contest_legal = True
    uses_pool = True
    norm_is_optional = True

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._library = load_kernel(kernel_source("gated_delta_rule"))

    @staticmethod
    def supports(problem: DeltaProblem, device: DeviceInfo) -> Support:
        for name, size in (("key", problem.key_head_dim), ("value", problem.value_head_dim)):
            if size % 16 or size > MAX_HEAD_DIM:
                what = f"{name}_head_dim {size} is not a multiple of 16 up to {MAX_HEAD_DIM}"
                return Support.no(what, "use torch-recurrent")
        if problem.num_value_heads % problem.num_key_heads:
            heads = f"{problem.num_value_heads} value heads do not divide among {problem.num_key_heads} key heads"
            return Support.no(heads, "correct the model's configuration")
        return cpu_kernel_support(problem.dtype, device)

    def read_bytes(self, problem: DeltaProblem) -> int:
        return state_and_weight_bytes(problem)

    def bind(
        self, inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, out: Tensor, problem: DeltaProblem
    ) -> Launch:
        p, rows = problem, (inputs.qkv, inputs.z, inputs.b, inputs.a)
        group = p.num_value_heads // p.num_key_heads
        sizes = (p.m, p.num_key_heads, group, p.key_head_dim, p.value_head_dim, p.conv_kernel)
        return bind_kernel(
            self._library,
            f"gated_delta_rule_{KERNEL_DTYPES[p.dtype]}",
            (
                *rows, *(row.stride(0) for row in rows), weights.conv, weights.a_log, weights.dt_bias, weights.norm,
                weights.eps, state.conv, state.recurrent, out, *sizes,
            ),
            self._executor,
        )  # fmt: skip
