"""Weights that a backend keeps as they were loaded: what a contest allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import ConfigError
from harness.specs.problem import LinearProblem
from harness.specs.tensor import CONFIG_DTYPES

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AsLoaded:
    """weight [n, k] and bias [n] or None: the caller's tensors, no copies."""

    weight: Tensor
    bias: Tensor | None

    @property
    def num_bytes(self) -> int:
        """What a product that reads each element once reads of them; activations are not counted."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


def as_loaded(weight: Tensor, bias: Tensor | None, problem: LinearProblem) -> AsLoaded:
    """The tensors, checked against the problem: kernels that get addresses only can't find out later."""
    _check("weight", weight, (problem.n, problem.k), problem.dtype)
    if (bias is not None) != problem.bias:
        raise ConfigError(
            f"the problem says bias={problem.bias}, the layer has {'no' if bias is None else 'a'} bias",
            "make the problem from the layer's tensors",
        )
    if bias is not None:
        _check("bias", bias, (problem.n,), problem.dtype)
    return AsLoaded(weight, bias)


def dtype_name(tensor: Tensor) -> str:
    """The tensor's type as safetensors names it, or torch's name where it is no type of weights."""
    name = str(tensor.dtype).removeprefix("torch.")
    return CONFIG_DTYPES.get(name, name)


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: str) -> None:
    if tuple(tensor.shape) != shape or dtype_name(tensor) != dtype or not tensor.is_contiguous():
        layout = "" if tensor.is_contiguous() else ", not contiguous"
        raise ConfigError(
            f"the {name} is {tensor.dtype} {[*tensor.shape]}{layout}; the problem says {dtype} {[*shape]}",
            "give the tensor as the checkpoint stores it, converted to the problem's type",
        )
