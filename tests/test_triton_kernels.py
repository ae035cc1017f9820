"""Loading Triton kernels: what is missing is said, and what is there has one shape."""

import dataclasses
import importlib.util
import sys

import pytest

from harness.errors import UnavailableError
from harness.triton_kernels import load_triton

OPS = ("read_probe", "gemv", "decode_attention", "prefill_attention", "gated_delta_rule", "elementwise")


@pytest.mark.parametrize("package", ["triton", "torch"])
def test_a_missing_package_is_named_with_the_mend(monkeypatch, package):
    monkeypatch.setitem(sys.modules, "triton" if package == "torch" else "torch", sys)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnavailableError, match=f"pip install {package}"):
        load_triton("gemv")


def test_an_op_without_a_triton_kernel_is_refused():
    with pytest.raises(UnavailableError, match="there is no kernel source"):
        load_triton("no_such_op")


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton here")
@pytest.mark.parametrize("op", OPS)
def test_every_op_declares_a_small_space(op):
    module = load_triton(op)
    assert load_triton(op) is module
    assert 1 < len(module.CONFIGS) < 12 and len(set(module.CONFIGS)) == len(module.CONFIGS)
    assert all(isinstance(config, module.Config) for config in module.CONFIGS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        module.CONFIGS[0].num_warps = 1
    assert any(name.startswith("bind_") for name in vars(module))
