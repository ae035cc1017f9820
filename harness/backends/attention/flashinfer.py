"""FlashInfer's decode attention (trtllm_batch_decode_with_kv_cache), on NVIDIA's Hopper and Blackwell.

Install: `pip install flashinfer-python`, 0.6 or newer; the first launch of a shape compiles, by nvcc and ninja.

Of FlashInfer's decode functions this is the one that reads how much is filled from device memory, so that a graph can
hold it. The others take that from the host: `single_decode_with_kv_cache` by the shape of the keys, the batch wrappers
in `plan`; each would ask the device before every step, which a captured step can't. A prompt's chunk has no such
function on all of these cards (`trtllm_batch_context_with_kv_cache` is Blackwell's alone), so this is for one query.

The function wants pages. Our cache of one request is taken as pages that lie one behind the other, through strides and
without a copy; a page has places of every head, so max_context must be whole pages. Each filled place is read once.
A launch is two kernels, one makes the context int32; all launches share one workspace, since they run one by one.

Unverified: written for the interface of 0.7.4 and checked with a stand-in for it; no card has run it yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.backends.attention.torch_sdpa import cache_bytes
from harness.backends.base import AttentionBackend, Executor, Launch, Support
from harness.backends.library import installed, load_library
from harness.backends.registry import attention_backend
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, Parameters

INSTALL = "pip install flashinfer-python, 0.6 or newer"
DTYPES = ("BF16", "F16")
PAGE_SIZES = (16, 32, 64)
"""Places of a page, those that both of its kernels have: XQA's (Hopper, sm_12x) and TensorRT-LLM's (sm_10x)."""
GENERATIONS = (9, 10, 12)
HEAD_DIM_STEP, MAX_HEAD_DIM, MAX_GROUP = 16, 256, 32
WORKSPACE_BYTES = 32 << 20
"""8 MiB of semaphores, and partial results: one for each multiprocessor, some MiB in all."""


@attention_backend("flashinfer")
class FlashInfer(AttentionBackend):
    """FlashInfer's paged decode, where it is installed: one query, the cache as the pages of one request."""

    contest_legal = True

    def __init__(self, executor: Executor, page_size: int | None = None) -> None:
        self._attend = load_library("flashinfer.decode").trtllm_batch_decode_with_kv_cache
        self._page_size = page_size
        self._workspace: Tensor | None = None

    @staticmethod
    def supports(problem: AttentionProblem, device: DeviceInfo) -> Support:
        here = installed("flashinfer", INSTALL)
        if not here.ok:
            return here
        if device.kind != "cuda" or generation(device) not in GENERATIONS:
            found = f"the device is {device.kind} {device.arch or ''}".rstrip()
            return Support.no(f"FlashInfer decodes on sm_90, sm_10x and sm_12x, {found}", "use another backend")
        if problem.m != 1:
            return Support.no(f"it takes one query, not {problem.m}", "use flash-attn")
        return _shape_support(problem)

    @staticmethod
    def tuning(problem: AttentionProblem, device: DeviceInfo) -> Sequence[Parameters]:
        return [{"page_size": size} for size in page_sizes(problem)]

    def read_bytes(self, problem: AttentionProblem, context: int) -> int:
        return cache_bytes(problem, context)

    def bind(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor, problem: AttentionProblem
    ) -> Launch:
        page_size = self._page_size or page_sizes(problem)[-1]
        paged = (problem.num_kv_heads, -1, page_size, problem.head_dim)
        keys, values = (cache.view(paged).transpose(0, 1) for cache in (k_cache, v_cache))
        page_table = torch.arange(len(keys), dtype=torch.int32, device=q.device)[None]
        filled = torch.empty(1, dtype=torch.int32, device=q.device)
        workspace, scale = self._shared_workspace(q.device), problem.head_dim**-0.5

        def launch() -> None:
            filled.copy_(context)
            self._attend(
                q, (keys, values), workspace, page_table, filled, problem.max_context, bmm1_scale=scale,
                bmm2_scale=1.0, out=out, kv_layout="HND",
            )  # fmt: skip

        return launch

    def _shared_workspace(self, device: torch.device) -> Tensor:
        """Zeros before the first use, as its semaphores must be; the kernels leave them so."""
        if self._workspace is None:
            self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._workspace


def generation(device: DeviceInfo) -> int:
    """9 of sm_90, 12 of sm_121; 0 where it is not known."""
    return int((device.arch or "sm_0").removeprefix("sm_")) // 10


def page_sizes(problem: AttentionProblem) -> list[int]:
    """Those that the cache is whole pages of."""
    return [size for size in PAGE_SIZES if problem.max_context % size == 0]


def _shape_support(problem: AttentionProblem) -> Support:
    if problem.dtype not in DTYPES:
        return Support.no(f"FlashInfer has no {problem.dtype} here", f"use one of {', '.join(DTYPES)}")
    if problem.head_dim % HEAD_DIM_STEP or problem.head_dim > MAX_HEAD_DIM:
        what = f"head_dim {problem.head_dim} is not a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}"
        return Support.no(what, "use torch-sdpa")
    group, rest = divmod(problem.num_heads, problem.num_kv_heads)
    if rest or group > MAX_GROUP:
        heads = f"{problem.num_heads} heads on {problem.num_kv_heads} key heads"
        return Support.no(f"{heads}: a group is 1 to {MAX_GROUP} whole heads", "use torch-sdpa")
    if not page_sizes(problem):
        what = f"a cache of {problem.max_context} places is no whole number of pages of {PAGE_SIZES[0]}"
        return Support.no(what, "choose prompt and answer so that they are, or use flash-attn")
    return Support.yes()
