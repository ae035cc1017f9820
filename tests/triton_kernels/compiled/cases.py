"""Launches at the shapes of a real model, bound to tensors without memory, and what each kernel has to stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from harness.triton_kernels import load_triton

Launch = Callable[[], None]


class Case(NamedTuple):
    launch: Launch
    streams: dict[str, dict[str, int]]
    """Kernel: what its source says on the line of a tl.load: bytes that one trip of its loop asks for there, which have
    to come in loads of 128 bits, or as wide as a lane's share of them is."""


def empty(*shape: int, dtype: str = "bfloat16"):
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def calls(counted: bool):
    return empty(1, dtype="int64")[0] if counted else None


def read(kernels) -> Case:
    config = kernels.CONFIGS[1]
    launch = kernels.bind_read(empty(2**27, dtype="int64"), empty(1, dtype="int64"), config)
    return Case(launch, {"sum_words": {"tl.load(words": config.block_words * 8}})


def copy(kernels) -> Case:
    config, words = kernels.CONFIGS[1], empty(2**27, dtype="int64")
    return Case(kernels.bind_copy(words, words, config), {"copy_words": {"tl.load(source": config.block_words * 8}})


def write(kernels) -> Case:
    return Case(kernels.bind_write(empty(2**27, dtype="int64"), 5, kernels.CONFIGS[1]), {})


def gemv(
    kernels, m: int, index: int, *, stride: int = 5120, dtype: str = "bfloat16", bias: bool = False,
    counted: bool = False,
) -> Case:  # fmt: skip
    """stride: of the weight's rows."""
    config, n, k = kernels.CONFIGS[index], 34816, 5120
    x, weight, out = empty(m, k, dtype=dtype), empty(n, stride, dtype=dtype)[:, :k], empty(m, n, dtype=dtype)
    launch = kernels.bind_gemv(x, weight, empty(n, dtype=dtype) if bias else None, out, config, calls(counted))
    return Case(launch, {"gemv": {"tl.load(tile": config.block_n * config.block_k * x.element_size()}})


def of_both(num_bytes: int) -> dict[str, int]:
    """Keys and values."""
    return {"tl.load(k_cache": num_bytes, "tl.load(v_cache": num_bytes}


def decode(kernels, group: int, head_dim: int, index: int, *, paged: bool = False, dtype: str = "bfloat16") -> Case:
    config, kv_heads = kernels.CONFIGS[index], 8
    q, context = empty(1, kv_heads * group, head_dim, dtype=dtype), empty(1, dtype="int64")
    if paged:
        both, table = empty(2048, 16, kv_heads, 2 * head_dim, dtype=dtype), empty(1, 2048, dtype="int32")
        cache, context = both[..., :head_dim], empty(1, dtype="int32")  # as vLLM keeps them
        launch = kernels.bind_paged(q, cache, cache, table, context, q, config, calls(True))
    else:
        cache = empty(1, kv_heads, 32768, head_dim, dtype=dtype)
        launch = kernels.bind_contiguous(q, cache, cache, context, q, config)
    return Case(launch, {"attend": of_both(config.block * head_dim * q.element_size())})


def prefill(kernels, head_dim: int, index: int, *, dtype: str = "bfloat16") -> Case:
    config, q = kernels.CONFIGS[index], empty(512, 32, head_dim, dtype=dtype)
    cache = empty(8, 32768, head_dim, dtype=dtype)
    launch = kernels.bind_prefill(q, cache, cache, empty(1, dtype="int64"), q, config)
    return Case(launch, {"attend": of_both(config.block_keys * head_dim * q.element_size())})


def delta(kernels, m: int, index: int, *, dtype: str = "bfloat16") -> Case:
    key_heads, heads, dim, taps, config = 16, 32, 128, 4, kernels.CONFIGS[index]
    channels = (2 * key_heads + heads) * dim
    inputs = kernels.Inputs(*(empty(m, size, dtype=dtype) for size in (channels, heads * dim, heads, heads)))
    biases = (empty(heads, dtype="float32") for _ in range(2))
    weights = kernels.Weights(empty(channels, taps, dtype=dtype), *biases, empty(dim, dtype=dtype), 1e-6)
    state = kernels.State(empty(taps - 1, channels, dtype=dtype), empty(heads, dim, dim, dtype="float32"))
    bind = kernels.bind_decode if m == 1 else load_triton("gated_delta_rule", "triton_chunks.py").bind_prefill
    launch = bind(inputs, weights, state, empty(m, heads * dim, dtype=dtype), key_heads, config)
    state_bytes = dim * config.block_v * 4
    streams = {"step": {"before = tl.load(place": state_bytes}, "chunks": {"s = tl.load(place": state_bytes}}
    return Case(launch, streams)


def elementwise(kernels, *, dtype: str = "bfloat16") -> Case:
    """As the native engine binds them, which chooses a Config for each width."""
    from harness.engines.native.elementwise.base import Norm
    from harness.engines.native.elementwise.triton_kernels import TritonElementwise

    ops, width, block = TritonElementwise(), 4096, kernels.CONFIGS[0].block
    x, wide, weight = empty(1, width, dtype=dtype), empty(1, 12288, dtype=dtype), empty(128, dtype=dtype)
    q, k = empty(1, 32, 128, dtype=dtype), empty(1, 8, 128, dtype=dtype)
    angles, cache = empty(32768, 64, dtype="float32"), empty(8, 32768, 128, dtype=dtype)
    norm, context = Norm(weight, 1e-6), empty(1, dtype="int64")
    launches = (
        ops.rmsnorm(x, Norm(x[0], 1e-6, centered=True), x),
        ops.add_rmsnorm(x, x, Norm(x[0], 1e-6), x),
        ops.silu_mul(wide, wide, wide),
        ops.sigmoid_mul(q, q),
        ops.qk_norm_rope_cache(q, k, k, norm, norm, angles, angles, context, q, cache, cache),
    )

    def launch() -> None:
        for each in launches:
            each()

    row, part = width * x.element_size(), block * x.element_size()
    norm = {"tl.load(x + row": row, "tl.load(weight + columns": row}
    return Case(launch, {"rmsnorm": norm, "silu_mul": {"tl.load(gate + row": part, "tl.load(up": part}})


ALL = frozenset({"sm_80", "sm_90", "gfx906", "gfx90a", "gfx942"})
PLAIN = frozenset({"gfx906"})
"""Without matrix cores: there tl.dot multiplies from registers, and only its smallest tiles fit."""

# Every kernel at the main shape in bf16, and one more type or shape. A tuning space is wider: what does not fit a card
# is slow there, and loses.
CASES: dict[str, tuple[str, Callable[..., Case], frozenset[str]]] = {
    "read": ("read_probe", read, ALL),
    "copy": ("read_probe", copy, ALL),
    "write": ("read_probe", write, ALL),
    "gemv one row": ("gemv", lambda kernels: gemv(kernels, 1, 1), ALL),
    "gemv counted": ("gemv", lambda kernels: gemv(kernels, 1, 9, counted=True), ALL),
    "gemv eight rows": ("gemv", lambda kernels: gemv(kernels, 8, 0, bias=True), ALL),
    "gemv fp32 split": ("gemv", lambda kernels: gemv(kernels, 2, 9, dtype="float32", bias=True), ALL),
    "decode": ("decode_attention", lambda kernels: decode(kernels, 4, 128, 2), ALL - PLAIN),
    "decode paged": ("decode_attention", lambda kernels: decode(kernels, 4, 128, 2, paged=True), ALL - PLAIN),
    "decode head 64": ("decode_attention", lambda kernels: decode(kernels, 8, 64, 2, dtype="float16"), ALL - PLAIN),
    "decode paged head 96": ("decode_attention", lambda kernels: decode(kernels, 4, 96, 2, paged=True), ALL - PLAIN),
    "decode head 256": ("decode_attention", lambda kernels: decode(kernels, 4, 256, 1), ALL - PLAIN),
    "decode paged head 256": ("decode_attention", lambda kernels: decode(kernels, 4, 256, 1, paged=True), ALL - PLAIN),
    "decode plain": ("decode_attention", lambda kernels: decode(kernels, 4, 128, 0), PLAIN),
    "decode paged plain": ("decode_attention", lambda kernels: decode(kernels, 4, 128, 0, paged=True), PLAIN),
    "decode plain head 64": ("decode_attention", lambda kernels: decode(kernels, 8, 64, 0, dtype="float16"), PLAIN),
    "decode paged plain head 96": ("decode_attention", lambda kernels: decode(kernels, 4, 96, 0, paged=True), PLAIN),
    "decode plain head 256": ("decode_attention", lambda kernels: decode(kernels, 4, 256, 0), PLAIN),
    "decode paged plain head 256": ("decode_attention", lambda kernels: decode(kernels, 4, 256, 0, paged=True), PLAIN),
    "decode head 80, 16 a key": ("decode_attention", lambda kernels: decode(kernels, 16, 80, 2), ALL - PLAIN),
    "prefill head 112": ("prefill_attention", lambda kernels: prefill(kernels, 112, 4), ALL - PLAIN),
    "decode one head a key": ("decode_attention", lambda kernels: decode(kernels, 1, 96, 1, dtype="float16"), ALL),
    "decode one head 256 a key": ("decode_attention", lambda kernels: decode(kernels, 1, 256, 1), ALL),
    "prefill": ("prefill_attention", lambda kernels: prefill(kernels, 128, 4), ALL - PLAIN),
    "prefill fp16": ("prefill_attention", lambda kernels: prefill(kernels, 64, 4, dtype="float16"), ALL - PLAIN),
    "prefill head 96": ("prefill_attention", lambda kernels: prefill(kernels, 96, 4), ALL - PLAIN),
    "prefill head 256": ("prefill_attention", lambda kernels: prefill(kernels, 256, 1), ALL - PLAIN),
    "prefill plain": ("prefill_attention", lambda kernels: prefill(kernels, 128, 0), PLAIN),
    "prefill plain head 64": ("prefill_attention", lambda kernels: prefill(kernels, 64, 0, dtype="float16"), PLAIN),
    "prefill plain head 96": ("prefill_attention", lambda kernels: prefill(kernels, 96, 0), PLAIN),
    "prefill plain head 256": ("prefill_attention", lambda kernels: prefill(kernels, 256, 0), PLAIN),
    "delta rule step": ("gated_delta_rule", lambda kernels: delta(kernels, 1, 2), ALL),
    "delta rule chunks": ("gated_delta_rule", lambda kernels: delta(kernels, 512, 1), ALL - PLAIN),
    "delta rule chunks plain": ("gated_delta_rule", lambda kernels: delta(kernels, 512, 0), PLAIN),
    "elementwise": ("elementwise", elementwise, ALL),
    "elementwise fp32": ("elementwise", lambda kernels: elementwise(kernels, dtype="float32"), ALL),
}
