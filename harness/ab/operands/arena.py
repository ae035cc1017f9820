"""The memory that operands rotate through: more than the last-level cache, so that none of it serves a call, as none
does in a decode step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.ab.operands.attention import AttentionOperands, AttentionPlaces, reference_bytes
from harness.ab.operands.base import NUM_CHECKS, NUM_INPUTS, Operands, Places
from harness.ab.operands.linear import WEIGHT_DEVIATION, LinearOperands, LinearPlaces
from harness.ab.operands.linear_attention import DeltaOperands, DeltaPlaces
from harness.ab.shapes import Case
from harness.backends.base import BlockCache
from harness.backends.check import product_bytes
from harness.engines.native.machine import free_memory_bytes
from harness.engines.native.memory import empty
from harness.engines.native.weights import TORCH_DTYPES
from harness.errors import UnavailableError
from harness.specs.device import DeviceInfo
from harness.specs.problem import AttentionProblem, LinearProblem

ROTATION_CACHES = 2
"""The arena is so many times the last-level cache, and at least MIN_ROTATION_BYTES."""
MIN_ROTATION_BYTES = 256 << 20
STATE_DTYPE = torch.float32
BLANK_PLACES = 16
"""Compilers look at addresses modulo 16: so many places have every remainder that there is."""
VLLM_BLOCK_SIZE = 16
"""Places: vLLM's on GPUs, unless it is told another."""
VLLM_BLOCKS = 64
FAULT_ARRAYS = 5
"""Of a result's size in float64, that holding it against what is right has at once."""


class Arena:
    """Room for every case of a comparison, one at a time."""

    def __init__(self, cases: Sequence[Case], dtype: str, device: DeviceInfo, on: torch.device, seed: int) -> None:
        self._dtype, self._seed, self._device = TORCH_DTYPES[dtype], seed, device
        self.num_bytes = _num_bytes(cases, self._dtype, device)
        self._memory = empty((self.num_bytes,), torch.uint8, on)
        self.refill()

    @property
    def outlasts_caches(self) -> bool:
        """Whether no cache holds what operands rotate through; of caches that nobody can tell it is not known."""
        cache_bytes = self._device.last_level_cache_bytes
        return cache_bytes is not None and self.num_bytes > cache_bytes

    def refill(self) -> None:
        """Random values: of zeros a memory controller and a multiplier make less work."""
        values = self._memory.view(self._dtype)
        random = torch.Generator(values.device).manual_seed(self._seed)
        values.normal_(0, WEIGHT_DEVIATION, generator=random)

    def operands(self, case: Case, seed: int) -> Operands:
        """Of one case; those of the case before are no longer valid."""
        values, problem = self._memory.view(self._dtype), case.problem
        if isinstance(problem, LinearProblem):
            return LinearOperands(values, problem, seed)
        if isinstance(problem, AttentionProblem):
            return AttentionOperands(values, problem, case.context or problem.max_context, seed)
        return DeltaOperands(self._memory.view(STATE_DTYPE), problem, self._dtype, seed)


class BlankArena:
    """An Arena's places without memory: a backend can be bound to them, and what its launches need be compiled."""

    def __init__(self, cases: Sequence[Case], dtype: str, device: DeviceInfo) -> None:
        self._dtype = TORCH_DTYPES[dtype]
        self._memory = torch.empty(_num_bytes(cases, self._dtype, device), dtype=torch.uint8, device="meta")

    def places(self, case: Case) -> Places:
        """Some of one case."""
        memory, problem = self._memory[: BLANK_PLACES * _place_bytes(case, self._dtype)], case.problem
        values = memory.view(self._dtype)
        if isinstance(problem, LinearProblem):
            return LinearPlaces(values, problem)
        if isinstance(problem, AttentionProblem):
            return AttentionPlaces(values, problem, case.context or problem.max_context)
        return DeltaPlaces(memory.view(STATE_DTYPE), problem, self._dtype)

    def requests(self, problem: AttentionProblem) -> tuple[Tensor, BlockCache, Tensor, Tensor, Tensor]:
        """What vLLM 0.32's step hands to decode attention, as `AttentionBackend.bind_requests` takes it: two requests,
        keys and values of a place beside each other."""
        p = problem
        q = torch.empty(2, p.num_heads, p.head_dim, dtype=self._dtype, device="meta")
        places = q.new_empty(VLLM_BLOCKS, p.num_kv_heads, VLLM_BLOCK_SIZE, 2 * p.head_dim)
        table, contexts = q.new_empty(2, VLLM_BLOCKS, dtype=torch.int32), q.new_empty(2, dtype=torch.int32)
        cache = BlockCache(places[..., : p.head_dim], places[..., p.head_dim :], table)
        return q, cache, contexts, torch.empty_like(q), q.new_empty((), dtype=torch.int64)


def _num_bytes(cases: Sequence[Case], dtype: torch.dtype, device: DeviceInfo) -> int:
    """At least two places of the largest; UnavailableError where memory has no room for that and for what is beside."""
    largest = max(_place_bytes(case, dtype) for case in cases)
    wanted = max(ROTATION_CACHES * (device.last_level_cache_bytes or 0), MIN_ROTATION_BYTES, 2 * largest)
    beside, available = max(_beside_bytes(case, dtype) for case in cases), free_memory_bytes(device)
    if available is not None and wanted + beside > available:
        raise UnavailableError(
            f"the operands rotate through {wanted:,} B, {beside:,} B are inputs, results and what"
            f" these are held against, {available:,} B are free",
            "take a smaller model, batch, chunk or context",
        )
    return wanted // 8 * 8


def _place_bytes(case: Case, dtype: torch.dtype) -> int:
    p = case.problem
    if isinstance(p, LinearProblem):
        return p.n * p.k * dtype.itemsize
    if isinstance(p, AttentionProblem):
        return 2 * p.num_kv_heads * p.max_context * p.head_dim * dtype.itemsize
    return p.state_values * STATE_DTYPE.itemsize


def _beside_bytes(case: Case, dtype: torch.dtype) -> int:
    """Inputs and outputs of the launches, inputs of the checks and, in float64, what is right for them and what it
    takes to work that out and to hold a result against it."""
    p, exact = case.problem, torch.float64.itemsize
    if isinstance(p, LinearProblem):
        inputs, outputs = p.m * p.k, p.m * p.n
        working = product_bytes(p.m, p.n, p.k)
    elif isinstance(p, AttentionProblem):
        inputs = outputs = p.m * p.num_heads * p.head_dim
        working = reference_bytes(p, case.context or p.max_context)
    else:
        outputs = p.m * p.num_value_heads * p.value_head_dim
        inputs = p.m * p.conv_channels + outputs
        states = NUM_CHECKS * p.state_values * (STATE_DTYPE.itemsize + exact)
        working = states + 2 * inputs * exact
    working = max(working, FAULT_ARRAYS * outputs * exact)
    return (inputs + outputs + NUM_INPUTS * inputs) * dtype.itemsize + NUM_CHECKS * outputs * exact + working
