"""Our decode attention in Triton (kernels/decode_attention/triton_kernel.py)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from harness.backends.attention.torch_sdpa import cache_bytes
from harness.backends.base import AttentionBackend, BlockCache, Executor, Launch, Support
from harness.backends.launch import triton_support
from harness.backends.registry import attention_backend
from harness.backends.triton import config_of, declared
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, Parameters
from harness.triton_kernels import load_triton

OP = "decode_attention"
MAX_HEAD_DIM, HEAD_DIM_STEP = 256, 16
MAX_GROUP = 16


@attention_backend("triton-decode")
class TritonDecode(AttentionBackend):
    """Triton kernel for one query: the context split over programs, a group of heads on one read of the cache."""

    contest_legal = True
    takes_requests = True
    compiles_at_launch = True

    def __init__(self, executor: Executor, **parameters: int | str) -> None:
        self._config = config_of(OP, parameters)

    @staticmethod
    def supports(problem: AttentionProblem, device: DeviceInfo) -> Support:
        if problem.m != 1:
            return Support.no(f"it takes one query, not {problem.m}", "use triton-prefill")
        if problem.num_heads % problem.num_kv_heads or problem.num_heads // problem.num_kv_heads > MAX_GROUP:
            heads = f"{problem.num_heads} heads on {problem.num_kv_heads} key heads"
            return Support.no(f"{heads}: a group is 1 to {MAX_GROUP} whole heads", "use torch-sdpa")
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
        launch: Launch = load_triton(OP).bind_contiguous(q, k_cache[None], v_cache[None], context, out, self._config)
        return launch

    def bind_requests(
        self, q: Tensor, cache: BlockCache, contexts: Tensor, out: Tensor, calls: Tensor | None,
        problem: AttentionProblem,
    ) -> Launch:  # fmt: skip
        keys, values = cache.keys.transpose(1, 2), cache.values.transpose(1, 2)
        launch: Launch = load_triton(OP).bind_paged(q, keys, values, cache.table, contexts, out, self._config, calls)
        return launch
