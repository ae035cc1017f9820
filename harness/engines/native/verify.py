"""Checks a loaded engine's linears against a float64 product on its own weights, before they may count as a roof."""

from __future__ import annotations

import torch

from harness.engines.native.decoder import Decoder
from harness.engines.native.ops import OpTable
from harness.engines.native.weights import Linear
from harness.errors import MeasurementError

# A sum of k products of bf16 values, rounded to the type once: 2^-8 of the result's scale, and some.
RELATIVE_TOLERANCE = {"BF16": 2.0**-7, "F16": 2.0**-10, "F32": 2.0**-18}


def check_linears(decoder: Decoder, ops: OpTable) -> None:
    """One product of each shape on a fresh random input, its output poisoned before.

    Raises MeasurementError with the largest error and the first place where it stands.
    """
    for role, weights in decoder.distinct_linears().items():
        n, k = weights.weight.shape
        x = torch.randn(1, k, device=weights.weight.device).to(weights.weight.dtype)
        out = torch.full((1, n), float("nan"), dtype=x.dtype, device=x.device)
        _, _, launch = ops.bind_linear("decode", weights, x, out)
        launch()
        _compare(role, out, _exact(x, weights), RELATIVE_TOLERANCE[ops.dtype])


def _exact(x: torch.Tensor, weights: Linear) -> torch.Tensor:
    """The product in float64, some rows at a time: a vocabulary's weight would be 8 times its size."""
    rows = weights.weight.split(4096)
    product = torch.cat([row.double() @ x[0].double() for row in rows])
    return product if weights.bias is None else product + weights.bias.double()


def _compare(role: str, out: torch.Tensor, exact: torch.Tensor, tolerance: float) -> None:
    scale = exact.abs().mean()
    error = (out[0].double() - exact).abs()
    wrong = ~(error <= tolerance * (exact.abs() + scale))  # NaN is wrong too
    if wrong.any():
        place = int(wrong.nonzero()[0])
        raise MeasurementError(
            f"linear {role} is incorrect: out[{place}] is {float(out[0, place]):.6g}, exactly {float(exact[place]):.6g}",
            "set engine.linear to torch, and report the backend",
        )
