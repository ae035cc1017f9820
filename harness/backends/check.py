"""Is a backend right? Its output against the float64 product, before it may be timed or counted as a roof."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, dtype

# What one rounding to the type may cost, and some for the order of a sum of k products.
_RELATIVE_TOLERANCE = {"torch.bfloat16": 2.0**-7, "torch.float16": 2.0**-10, "torch.float32": 2.0**-18}
_ROWS_AT_ONCE = 4096


def exact_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [m, k] times weight [n, k] transposed, in float64; a vocabulary's weight is taken some rows at a time."""
    rows = x.double()
    product = x.new_empty((x.shape[0], weight.shape[0])).double()
    for start in range(0, weight.shape[0], _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        product[:, part] = rows @ weight[part].double().t()
    return product if bias is None else product + bias.double()


def product_bytes(m: int, n: int, k: int) -> int:
    """What `exact_product` has at once beside its operands: a part of the weight twice, inputs, the product twice."""
    values = 2 * min(n, _ROWS_AT_ONCE) * k + m * k + 2 * m * n
    return values * 8  # float64


def first_fault(out: Tensor, exact: Tensor, rounded_to: dtype | None = None, roundings: int = 1) -> str:
    """The largest error and the first place that is wrong; empty when there is none. NaN is wrong.

    An element may err by the type's tolerance of its own size and of the mean size: a sum that cancels keeps the
    rounding of its parts. rounded_to: the type of what it was made from, where out's own is finer. roundings: how many
    stand one behind the other.
    """
    error = (out.double() - exact).abs()
    tolerance = roundings * _RELATIVE_TOLERANCE[str(rounded_to or out.dtype)]
    wrong = ~(error <= tolerance * (exact.abs() + exact.abs().mean()))
    if not wrong.any():
        return ""
    place = tuple(wrong.nonzero()[0].tolist())
    largest = float(error.nan_to_num(float("inf")).max())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} wrong, largest error {largest:.3g}; first at {list(place)}:"
        f" {float(out[place]):.6g}, exactly {float(exact[place]):.6g}"
    )
