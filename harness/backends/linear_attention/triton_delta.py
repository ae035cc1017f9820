"""Our gated delta rule in Triton (kernels/gated_delta_rule): a step in place, prompts by chunks."""

from __future__ import annotations

from collections.abc import Sequence

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
from harness.backends.launch import triton_support
from harness.backends.linear_attention.torch_recurrent import state_and_weight_bytes
from harness.backends.registry import linear_attention_backend
from harness.backends.triton import config_of, declared
from harness.specs.device import DeviceInfo
from harness.specs.problem import DeltaProblem, Parameters
from harness.triton_kernels import load_triton

OP = "gated_delta_rule"
MAX_HEAD_DIM = 256


@linear_attention_backend("triton-delta")
class TritonDelta(LinearAttentionBackend):
    """Triton kernels: one token in place; of a prompt a chunk at once, its triangular system solved in fp32."""

    contest_legal = True
    compiles_at_launch = True

    def __init__(self, executor: Executor, **parameters: int | str) -> None:
        self._config = config_of(OP, parameters)

    @staticmethod
    def supports(problem: DeltaProblem, device: DeviceInfo) -> Support:
        p = problem
        if p.num_value_heads % p.num_key_heads:
            heads = f"{p.num_value_heads} value heads do not divide among {p.num_key_heads} key heads"
            return Support.no(heads, "correct the model's configuration")
        if max(p.key_head_dim, p.value_head_dim) > MAX_HEAD_DIM:
            dims = f"{p.key_head_dim} x {p.value_head_dim}"
            return Support.no(f"heads of {dims} are larger than {MAX_HEAD_DIM}", "use torch-recurrent")
        return triton_support(p.dtype, device)

    @staticmethod
    def tuning(problem: DeltaProblem, device: DeviceInfo) -> Sequence[Parameters]:
        return declared(OP) if triton_support(problem.dtype, device).ok else ()

    def read_bytes(self, problem: DeltaProblem) -> int:
        return state_and_weight_bytes(problem)

    def bind(
        self, inputs: DeltaInputs, weights: DeltaWeights, state: DeltaState, out: Tensor, problem: DeltaProblem
    ) -> Launch:
        bind = load_triton(OP).bind_decode if problem.m == 1 else load_triton(OP, "triton_chunks.py").bind_prefill
        launch: Launch = bind(inputs, weights, state, out, problem.num_key_heads, self._config)
        return launch
