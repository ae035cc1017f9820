"""Our decode attention for CPUs (kernels/decode_attention): one query, each filled place read once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from harness.backends.attention.torch_sdpa import cache_bytes
from harness.backends.base import AttentionBackend, BlockCache, Executor, Launch, Support
from harness.backends.launch import KERNEL_DTYPES, KernelLaunch, bind_kernel, cpu_kernel_support, whole_lines
from harness.backends.registry import attention_backend
from harness.backends.scratch import Scratch
from harness.backends.streams import stream_space, streams_or_default
from harness.kernel_build import kernel_source, load_kernel
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, Parameters

MAX_GROUP = 16
MAX_HEAD_DIM = 256


@attention_backend("cpu-decode")
class CpuDecode(AttentionBackend):
    """C++ kernel for one query: the cache split over threads by place, all heads of a group on one read."""

    contest_legal = True
    uses_pool = True
    takes_blocks = True

    def __init__(
        self, executor: Executor, num_streams: int | None = None, prefetch_bytes: int | None = None
    ) -> None:  # fmt: skip
        self._executor = executor
        self._streams = streams_or_default(executor.device, num_streams, prefetch_bytes)
        self._library, self.scratch = load_kernel(kernel_source("decode_attention")), Scratch()

    @staticmethod
    def supports(problem: AttentionProblem, device: DeviceInfo) -> Support:
        group, rest = divmod(problem.num_heads, problem.num_kv_heads)
        if problem.m != 1:
            return Support.no(f"it takes one query, not {problem.m}", "use torch-sdpa")
        if rest or group > MAX_GROUP:
            heads = f"{problem.num_heads} heads on {problem.num_kv_heads} key heads"
            return Support.no(f"{heads}: a group is 1 to {MAX_GROUP} whole heads", "use torch-sdpa")
        if problem.head_dim % 16 or problem.head_dim > MAX_HEAD_DIM:
            return Support.no(
                f"head_dim {problem.head_dim} is not a multiple of 16 up to {MAX_HEAD_DIM}", "use torch-sdpa"
            )
        return cpu_kernel_support(problem.dtype, device)

    @staticmethod
    def tuning(problem: AttentionProblem, device: DeviceInfo) -> Sequence[Parameters]:
        return stream_space()

    def read_bytes(self, problem: AttentionProblem, context: int) -> int:
        return cache_bytes(problem, context)

    def bind(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        context: Tensor,
        out: Tensor,
        problem: AttentionProblem,
    ) -> Launch:
        tensors = (q, k_cache, v_cache, context, out, self._scratch(problem))
        return self._bind("decode_attention", problem, tensors, (problem.max_context,))

    def bind_blocks(
        self, q: Tensor, cache: BlockCache, context: Tensor, out: Tensor, problem: AttentionProblem
    ) -> KernelLaunch:  # fmt: skip
        """block_size is a power of two, and values are everywhere as far from their keys."""
        tensors = (q, cache.keys, cache.values, cache.table, context, out, self._scratch(problem))
        strides = cache.keys.stride(0), cache.keys.stride(1)
        return self._bind("decode_attention_paged", problem, tensors, (cache.keys.shape[2], *strides))

    def _scratch(self, problem: AttentionProblem) -> Tensor:
        threads = 1 if self._executor.pool is None else self._executor.pool.num_threads
        group = problem.num_heads // problem.num_kv_heads
        slots = (problem.num_kv_heads + threads - 1) * group
        return self.scratch.floats(slots * (whole_lines(problem.head_dim) + 2))

    def _bind(
        self, kernel: str, problem: AttentionProblem, tensors: Sequence[Tensor], cache_sizes: Sequence[int]
    ) -> KernelLaunch:  # fmt: skip
        heads = problem.num_kv_heads, problem.num_heads // problem.num_kv_heads, problem.head_dim
        name = f"{kernel}_{KERNEL_DTYPES[problem.dtype]}"
        return bind_kernel(self._library, name, (*tensors, *heads, *cache_sizes, *self._streams), self._executor)
