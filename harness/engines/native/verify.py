"""Checks a loaded engine's linears on its own weights, before their speed may count as a roof."""

from __future__ import annotations

import torch

from harness.backends.check import exact_product, first_fault
from harness.engines.native.decoder import Decoder, Step
from harness.engines.native.ops import OpTable
from harness.engines.native.weights import Linear
from harness.errors import MeasurementError


def distinct_linears(step: Step) -> dict[str, Linear]:
    """The first of each role and shape that a decode step multiplies with."""
    found: dict[str, Linear] = {}
    for bound in step.launches:
        if bound.weights is not None:
            n, k = bound.weights.weight.shape
            found.setdefault(f"{bound.role} {n}x{k}", bound.weights)
    return found


def check_linears(decoder: Decoder, ops: OpTable) -> None:
    """One product of each shape on a fresh random input, its output poisoned before. Raises MeasurementError."""
    for role, weights in distinct_linears(decoder.decode_step()).items():
        n, k = weights.weight.shape
        x = torch.randn(1, k, device=weights.weight.device).to(weights.weight.dtype)
        out = torch.full((1, n), float("nan"), dtype=x.dtype, device=x.device)
        choice, _, launch = ops.bind_linear("decode", weights, x, out)
        launch()
        fault = first_fault(out, exact_product(x, weights.weight, weights.bias))
        if fault:
            raise MeasurementError(
                f"linear {role} by {choice.backend.name} is incorrect: {fault}",
                "set engine.linear to torch, and report it",
            )
