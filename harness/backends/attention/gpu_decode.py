"""Our decode attention for GPUs (kernels/decode_attention/gpu.cu): one query, the context split over blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from harness.backends.attention.torch_sdpa import cache_bytes
from harness.backends.base import AttentionBackend, BlockCache, Executor, Launch, Support
from harness.backends.launch import GPU_KERNEL_DTYPES, GpuLaunch, bind_gpu_kernel, gpu_kernel_support
from harness.backends.registry import attention_backend
from harness.backends.scratch import Scratch
from harness.gpu_build import load_gpu_kernel, wave_widths
from harness.kernel_build import kernel_source
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, Parameters
from harness.specs.tensor import dtype_bytes

MAX_HEAD_DIM = 256
PACK_BYTES = 16


@attention_backend("gpu-decode")
class GpuDecode(AttentionBackend):
    """CUDA/HIP kernel for one query: heads of a group share one read of the cache, splits are combined at the end."""

    contest_legal = True
    takes_requests = True

    def __init__(self, executor: Executor, num_splits: int = 32) -> None:
        target = executor.device.arch or ""
        self._executor, self._num_splits = executor, num_splits
        self.scratch = Scratch()
        self._library = load_gpu_kernel(kernel_source("decode_attention", "gpu.cu"), target)
        self._wave = executor.device.wave_width or wave_widths(target)[0]

    @staticmethod
    def supports(problem: AttentionProblem, device: DeviceInfo) -> Support:
        if problem.m != 1:
            return Support.no(f"it takes one query, not {problem.m}", "use a prefill backend")
        if problem.num_heads % problem.num_kv_heads:
            heads = f"{problem.num_heads} heads do not divide among {problem.num_kv_heads} key heads"
            return Support.no(heads, "correct the model's configuration")
        known = problem.dtype in GPU_KERNEL_DTYPES
        if known and (problem.head_dim * dtype_bytes(problem.dtype) % PACK_BYTES or problem.head_dim > MAX_HEAD_DIM):
            what = f"head_dim {problem.head_dim} is not whole packs of {PACK_BYTES} bytes up to {MAX_HEAD_DIM}"
            return Support.no(what, "use torch-sdpa")
        return gpu_kernel_support(problem.dtype, device)

    @staticmethod
    def tuning(problem: AttentionProblem, device: DeviceInfo) -> Sequence[Parameters]:
        return [{"num_splits": splits} for splits in (8, 16, 32, 64, 128)]

    def read_bytes(self, problem: AttentionProblem, context: int) -> int:
        return cache_bytes(problem, context)

    def bind(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor, problem: AttentionProblem
    ) -> Launch:
        p = problem
        scratch, group, request_stride = self._scratch(q), p.num_heads // p.num_kv_heads, 0
        sizes = (1, p.num_kv_heads, group, p.head_dim, p.max_context, request_stride, self._num_splits, self._wave)
        tensors = (q, k_cache, v_cache, context, out, scratch)
        kernel = f"decode_attention_{GPU_KERNEL_DTYPES[p.dtype]}"
        return bind_gpu_kernel(self._library, kernel, (*tensors, *sizes), self._executor)

    def bind_requests(
        self, q: Tensor, cache: BlockCache, contexts: Tensor, out: Tensor, calls: Tensor | None,
        problem: AttentionProblem,
    ) -> GpuLaunch:  # fmt: skip
        p = problem
        # A dimension of size 1 has any stride, which the kernel would check.
        block_stride, head_stride, place_stride = (
            stride if size > 1 else 0 for size, stride in zip(cache.keys.shape, cache.keys.stride()[:3], strict=False)
        )
        sizes = (len(q), p.num_kv_heads, p.num_heads // p.num_kv_heads, p.head_dim, cache.keys.shape[2])
        strides = block_stride, place_stride, head_stride, cache.table.stride(0)
        tensors = (q, cache.keys, cache.values, cache.table, contexts, out, self._scratch(q))
        kernel = f"decode_attention_paged_{GPU_KERNEL_DTYPES[p.dtype]}"
        arguments = (*tensors, *sizes, *strides, self._num_splits, self._wave, calls)
        return bind_gpu_kernel(self._library, kernel, arguments, self._executor)

    def _scratch(self, q: Tensor) -> Tensor:
        """q [requests, num_heads, head_dim]"""
        requests, heads, head_dim = q.shape
        return self.scratch.floats(requests * heads * self._num_splits * (head_dim + 2), q.device)
