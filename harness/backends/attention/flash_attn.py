"""flash-attn's attention over a cache (Dao-AILab's flash_attn_with_kvcache), for a step and for a prompt's chunk.

Install: `pip install flash-attn --no-build-isolation` beside a CUDA torch (Ampere or newer); on ROCm and DCU the
vendor's build of the same package, whose `flash_attn_with_kvcache` is called alike.

It reads keys and values of the filled places, each once, and takes our cache as it lies: head by head, seen through
strides as [1, max_context, num_kv_heads, head_dim]. It wants the context as int32 on the device, so a launch is three
kernels: that conversion, the attention, and a copy of its result into `out`. No value comes to the host, so a graph can
hold them. How many splits it makes by itself (num_splits 0) goes by max_context, not by what is filled.

Unverified: written for the interface of 2.8.3 and checked with a stand-in for it; no card has run it yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.backends.attention.torch_sdpa import cache_bytes
from harness.backends.base import AttentionBackend, Executor, Launch, Support
from harness.backends.launch import GPU_KINDS
from harness.backends.library import installed, load_library
from harness.backends.registry import attention_backend
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, Parameters

INSTALL = "pip install flash-attn --no-build-isolation; ROCm and DCU have builds of their own"
DTYPES = ("BF16", "F16")
MAX_HEAD_DIM = 256
HEAD_DIM_STEP = 8
"""With another head_dim it would copy the whole cache into a padded one."""
OLDEST_CUDA = 80


@attention_backend("flash-attn")
class FlashAttn(AttentionBackend):
    """flash-attn's flash_attn_with_kvcache, where it is installed: steps and chunks, only filled places read."""

    contest_legal = True

    def __init__(self, executor: Executor, num_splits: int = 0) -> None:
        self._attend = load_library("flash_attn").flash_attn_with_kvcache
        self._num_splits = num_splits

    @staticmethod
    def supports(problem: AttentionProblem, device: DeviceInfo) -> Support:
        here = installed("flash_attn", INSTALL)
        if not here.ok:
            return here
        if device.kind not in GPU_KINDS:
            return Support.no(f"flash-attn runs on a GPU, the device is {device.kind}", "use a CPU backend")
        if device.kind == "cuda" and int((device.arch or "sm_80").removeprefix("sm_")) < OLDEST_CUDA:
            return Support.no(f"flash-attn needs sm_{OLDEST_CUDA}, the card is {device.arch}", "use gpu-decode")
        if problem.dtype not in DTYPES:
            return Support.no(f"flash-attn has no {problem.dtype}", f"use one of {', '.join(DTYPES)}")
        if problem.head_dim % HEAD_DIM_STEP or problem.head_dim > MAX_HEAD_DIM:
            what = f"head_dim {problem.head_dim} is not a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}"
            return Support.no(what, "use torch-sdpa")
        if problem.num_heads % problem.num_kv_heads:
            heads = f"{problem.num_heads} heads do not divide among {problem.num_kv_heads} key heads"
            return Support.no(heads, "correct the model's configuration")
        return Support.yes()

    @staticmethod
    def tuning(problem: AttentionProblem, device: DeviceInfo) -> Sequence[Parameters]:
        return [{"num_splits": splits} for splits in (0, 8, 16, 32, 64)] if problem.m == 1 else ()

    def read_bytes(self, problem: AttentionProblem, context: int) -> int:
        return cache_bytes(problem, context)

    def bind(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Tensor, out: Tensor, problem: AttentionProblem
    ) -> Launch:
        queries, keys, values = q[None], k_cache.transpose(0, 1)[None], v_cache.transpose(0, 1)[None]
        filled = torch.empty(1, dtype=torch.int32, device=q.device)
        scale = problem.head_dim**-0.5

        def launch() -> None:
            filled.copy_(context)
            attended = self._attend(
                queries, keys, values, cache_seqlens=filled, softmax_scale=scale, causal=True,
                num_splits=self._num_splits,
            )  # fmt: skip
            out.copy_(attended[0])

        return launch
