"""Triton's kernels in the native engine: its own operations one by one beside torch's, and whole models."""

import numpy as np
import pytest
from native_engines import opened, tiny_config
from tensors import DTYPES, ROUNDING, assert_close, exact, normals, strided

EPS = 1e-5

dtypes = pytest.mark.parametrize("dtype", DTYPES)
rows = pytest.mark.parametrize("m", [1, 5])
norms = pytest.mark.parametrize("centered", [False, True], ids=["factor", "centered"])


def copied(argument):
    """A tensor again, with its strides and what lies between."""
    import torch

    if not isinstance(argument, torch.Tensor):
        return argument
    memory = argument.untyped_storage().clone()
    return argument.new_empty(0).set_(memory, argument.storage_offset(), argument.shape, argument.stride())


def check(operation: str, *arguments) -> None:
    """Every tensor, operands and outputs, is after torch's launch and after Triton's the same but for the last place.

    The half types show where values are rounded, since nearly all are then equal.
    """
    import torch

    from harness.engines.native.elementwise.torch_ops import TorchElementwise
    from harness.engines.native.elementwise.triton_kernels import TritonElementwise

    ours = [copied(argument) for argument in arguments]
    getattr(TorchElementwise(), operation)(*arguments)()
    getattr(TritonElementwise(), operation)(*ours)()
    for found, wanted in zip(ours, arguments, strict=True):
        if isinstance(found, torch.Tensor):
            assert torch.equal(found.isnan(), wanted.isnan()), "written at another place"
            values = exact(wanted.nan_to_num())
            rounding = ROUNDING[str(wanted.dtype).removeprefix("torch.")] if wanted.is_floating_point() else 0.0
            assert_close(exact(found.nan_to_num()), values, 3 * rounding * (1 + np.abs(values)))
            assert (
                wanted.dtype not in (torch.bfloat16, torch.float16)
                or np.mean(exact(found.nan_to_num()) != values) < 0.02
            )


def poison(*shape, dtype, device):
    import torch

    return torch.full(shape, torch.nan, dtype=getattr(torch, dtype), device=device)


def norm(width, dtype, device, centered, seed=9):
    from harness.engines.native.elementwise.base import Norm

    return Norm(normals((width,), dtype, device, seed), EPS, centered)


@dtypes
@rows
@norms
def test_norms(device, dtype, m, centered):
    x, delta = (normals((m, 200), dtype, device, seed) for seed in (1, 2))
    out, weight = poison(m, 200, dtype=dtype, device=device), norm(200, dtype, device, centered)
    check("rmsnorm", x, weight, out)
    check("add_rmsnorm", x, delta, weight, out.fill_(float("nan")))


@dtypes
@rows
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3.5"])
def test_qk_norm_rope_cache(device, dtype, m, family):
    """The operands of each family; Qwen3.5: gates between the heads, centered norms, a quarter of a head turns."""
    import torch

    heads, kv_heads, d, max_context, hybrid = 3, 1, 64, 9, family == "qwen3.5"
    q = normals((m, heads, d * 2), dtype, device)[:, :, :d] if hybrid else normals((m, heads, d), dtype, device)
    k, v = (normals((m, kv_heads, d), dtype, device, seed) for seed in (1, 2))
    q_norm, k_norm = (None if family == "llama" else norm(d, dtype, device, hybrid, seed) for seed in (3, 4))
    angles = 7 * normals((max_context, d // 8 if hybrid else d // 2), "float32", device)
    context = torch.tensor([7], device=device)
    out, *caches = (poison(*s, d, dtype=dtype, device=device) for s in ((m, heads), *2 * [(kv_heads, max_context)]))
    check("qk_norm_rope_cache", q, k, v, q_norm, k_norm, angles.cos(), angles.sin(), context, out, *caches)
    assert caches[0].isnan().sum() == caches[1].isnan().sum() == (max_context - m) * kv_heads * d


@dtypes
@rows
def test_activations(device, dtype, m):
    gate, up = normals((m, 600), dtype, device).chunk(2, dim=1)
    check("silu_mul", gate, up, poison(m, 300, dtype=dtype, device=device))
    check("sigmoid_mul", normals((m, 3, 24), dtype, device), strided((m, 3, 24), dtype, device, gap=24))


@dtypes
def test_what_is_torchs(device, dtype):
    import torch

    table, ids = normals((11, 40), dtype, device), torch.tensor([10, 0, 3], device=device)
    check("embed", ids, table, poison(3, 40, dtype=dtype, device=device))
    check("advance", torch.tensor([41], device=device), 5)
    check("argmax", table[0], torch.tensor([-1], device=device))


TRITON = {
    "linear": "triton-gemv", "attention": "triton-decode", "prefill_attention": "triton-prefill",
    "linear_attention": "triton-delta", "prefill_linear_attention": "triton-delta", "elementwise": "triton",
}  # fmt: skip
# A hybrid has all that the protocol has: gates, centered norms, heads of which a quarter turns. The interpreter takes
# some 10 ms for a row of a weight: as few as the attention kernels' head_dim allows.
SIZES = {
    "hidden_size": 32, "intermediate_size": 16, "vocab_size": 40, "head_dim": 64, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1, "linear_num_value_heads": 2,
}  # fmt: skip


def test_logits_of_a_whole_model(tmp_path, device):
    """All but the prompt's products by Triton: a prompt in two chunks and forced tokens, beside torch's logits."""
    import torch

    model = tiny_config(tmp_path, "qwen3.5", **SIZES)

    def run(**engine: str) -> "tuple[torch.Tensor, set[str]]":
        settings = {"prefill_chunk": 5, "prefill_linear": "torch", "device": device, **engine}
        with opened(model, "torch", **settings) as decoding, torch.inference_mode():
            decoder, logits = decoding._decoder, []
            decoder.prefill([[5, 30, 17, 3, 24, 37, 8, 14, 11]])
            for token in (27, 4):
                logits.append(decoder.logits[0].clone())
                decoder.token.fill_(token)
                decoder.decode_step().run()
            report = decoding.report()
        names = {f"{choice.phase} {choice.op} {choice.backend}" for choice in report.ops}
        return torch.stack([*logits, decoder.logits[0]]), names | {f"elementwise {report.elementwise}"}

    expected, _ = run()
    logits, names = run(**TRITON)
    assert names >= {"decode linear triton-gemv", "prefill attention triton-prefill", "elementwise triton"}
    assert {name for name in names if "triton" not in name} == {"prefill linear torch"}
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
