"""Checks a backend as an A/B does, on two places: fresh inputs, poisoned outputs, nothing else changed."""

from typing import Any

import torch

from harness.ab.operands.attention import AttentionOperands
from harness.ab.operands.base import NUM_CHECKS
from harness.ab.operands.linear import LinearOperands
from harness.ab.operands.linear_attention import DeltaOperands
from harness.backends.base import Executor
from harness.specs.problem import AttentionProblem, DeltaProblem, LinearProblem

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
PLACES = 2


def linear(m: int, n: int, k: int, dtype: str = "BF16", bias: bool = True) -> LinearOperands:
    arena = torch.randn(PLACES * n * k, generator=torch.Generator().manual_seed(k)).to(DTYPES[dtype])
    return LinearOperands(arena, LinearProblem(m=m, n=n, k=k, dtype=dtype, bias=bias), seed=n)


def attention(m: int, context: int, group: int, head_dim: int, dtype: str = "BF16", kv_heads: int = 2) -> Any:
    problem = AttentionProblem(
        m=m, num_heads=kv_heads * group, num_kv_heads=kv_heads, head_dim=head_dim, max_context=context + 9, dtype=dtype
    )
    arena = torch.empty(PLACES * 2 * kv_heads * problem.max_context * head_dim, dtype=DTYPES[dtype])
    return AttentionOperands(arena, problem, context, seed=context)


def delta(m: int, key_heads: int, value_heads: int, dim: int, dtype: str = "BF16") -> DeltaOperands:
    problem = DeltaProblem(
        m=m, num_key_heads=key_heads, num_value_heads=value_heads, key_head_dim=dim, value_head_dim=dim, conv_kernel=4,
        dtype=dtype,
    )  # fmt: skip
    return DeltaOperands(torch.empty(PLACES * problem.state_values), problem, DTYPES[dtype], seed=m)


def assert_right(backend: type[Any], operands: Any, executor: Executor, **parameters: int | str) -> None:
    """Every check, twice: a launch may keep nothing of the one before."""
    bound = operands.bind(backend, parameters, executor)
    assert len(bound.launches) == PLACES
    for check in (*range(NUM_CHECKS), *range(NUM_CHECKS)):
        bound.launches[operands.pose(check)]()
        assert operands.changed() == ""
        assert operands.fault(check) == "", f"{backend.name} {parameters}"
