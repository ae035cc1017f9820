"""Our prefill attention in Triton (kernels/prefill_attention/triton_kernel.py)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from harness.backends.attention.torch_sdpa import cache_bytes
from harness.backends.base import AttentionBackend, Executor, Launch, Support
from harness.backends.launch import triton_support
from harness.backends.registry import attention_backend
from harness.backends.triton import config_of, declared
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, Parameters
from harness.triton_kernels import load_triton

OP = "prefill_attention"
MAX_HEAD_DIM, HEAD_DIM_STEP = 256, 16


@attention_backend("triton-prefill")
class TritonPrefill(AttentionBackend):
    """Triton kernel for a prompt's chunk: tiles of queries over tiles of keys, only filled places read."""

    contest_legal = True
    compiles_at_launch = True

    def __init__(self, executor: Executor, **parameters: int | str) -> None:
        self._config = config_of(OP, parameters)

    @staticmethod
    def supports(problem: AttentionProblem, device: DeviceInfo) -> Support:
        if problem.m == 1:
            return Support.no("one query is no chunk", "use triton-decode")
        if problem.num_heads % problem.num_kv_heads:
            heads = f"{problem.num_heads} heads do not divide among {problem.num_kv_heads} key heads"
            return Support.no(heads, "correct the model's configuration")
        if problem.head_dim % HEAD_DIM_STEP or problem.head_dim > MAX_HEAD_DIM:
            what = f"head_dim {problem.head_dim} is not a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}"
            return Support.no(what, "use torch-sdpa")
        return triton_support(problem.dtype, device)

    @staticmethod
    def tuning(problem: AttentionProblem, device: DeviceInfo) -> Sequence[Parameters]:
        return declared(OP) if triton_support(problem.dtype, device).ok else ()

    def read_bytes(self, problem: AttentionProblem, context: int) -> int:
        return cache_bytes(problem, context)

    def bind(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor, problem: AttentionProblem
    ) -> Launch:
        launch: Launch = load_triton(OP).bind_prefill(q, k_cache, v_cache, context, out, self._config)
        return launch
