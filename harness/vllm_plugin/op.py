"""The one custom op behind all our linears: opaque to the compiler, it branches on the number of rows when it runs."""

# No `from __future__ import annotations`: the op's schema is read from them.
import torch
from torch import Tensor
from torch.library import Library
from vllm.utils.torch_utils import direct_register_custom_op

from harness.errors import UnavailableError
from harness.vllm_plugin.session import Session

_library = Library("harness", "FRAGMENT")  # type: ignore[no-untyped-call]
_open: list[Session] = []
"""The process's session, if one is open."""


def current() -> Session | None:
    """The open session."""
    return _open[0] if _open else None


def replace(session: Session | None) -> None:
    """Opens one, or none; the one before lets go of its model."""
    for before in _open:
        before.close()
    _open[:] = [] if session is None else [session]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., k], weight [n, k] -> [..., n]. The weight's address says which layer it is: a name or a number would make
    every layer another graph to compile."""
    if not _open:
        raise UnavailableError("the plugin's session was closed", "a model can't be used behind its engine's close")
    return _open[0].linears.product(x, weight, bias)


def _linear_shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


direct_register_custom_op("linear", linear, fake_impl=_linear_shape, target_lib=_library)
selected_linear = torch.ops.harness.linear
