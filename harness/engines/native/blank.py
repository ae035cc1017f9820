"""The engine's steps on tensors without memory: what a run would launch, for a card that need not be here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch

from harness.backends.base import DeltaInputs, DeltaState, DeltaWeights, Executor, Launch
from harness.engines.native.decoder import Decoder
from harness.engines.native.elementwise.base import Elementwise
from harness.engines.native.ops import Bound, OpTable, Phase
from harness.engines.native.weights import Linear, blank_source
from harness.engines.native.workspace import Workspace
from harness.specs.device import DeviceInfo
from harness.specs.model import ModelSpec
from harness.specs.parts.attention import Attention
from harness.specs.parts.gated_delta import GatedDelta
from harness.specs.run import NativeEngine
from harness.specs.tensor import dtype_bytes

USUAL = NativeEngine(kind="native")
LARGE_BYTES = 2**31
"""From here on Triton has no 32-bit offsets into a tensor for AMD's cards, so it compiles anew."""


def elementwise_launches(spec: ModelSpec, elementwise: Elementwise, device: DeviceInfo) -> Iterator[Launch]:
    """What a run launches between products and attention: a decode step's and those of a prompt's chunks.

    Triton compiles anew for a number that is 1, a multiple of 16 or neither. So: chunks of the usual size and the rest
    of a prompt, caches whose places are a multiple of 16 and not, and both of those once more where they are large.
    """
    chunk = USUAL.prefill_chunk
    for max_context in _cache_places(spec, 2 * chunk):
        decoder = _blank_decoder(spec, elementwise, device, max_context)
        steps = [decoder.decode_step()]
        decoder.prefill([[0] * (2 * chunk - 1)], steps.append)
        yield from (bound.run for step in steps for bound in step.launches if bound.kind == "elementwise")


def _cache_places(spec: ModelSpec, usual: int) -> list[int]:
    """Large caches only where the model's positions fill one."""
    layers = Counter(layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention))
    place_bytes = [mixer.kv_values * count * dtype_bytes(spec.dtype) for mixer, count in layers.items()]
    places = [usual, usual + 1]
    if place_bytes:
        large = -(-LARGE_BYTES // min(place_bytes) // 16) * 16
        places += [large, large + 1] if large < spec.max_position_embeddings else []
    return places


def _blank_decoder(spec: ModelSpec, elementwise: Elementwise, device: DeviceInfo, max_context: int) -> Decoder:
    """As the rig makes one of the usual settings for a single request."""
    source, chunk = blank_source(spec), USUAL.prefill_chunk
    workspace = Workspace(
        spec, _NoOps(Executor(device), USUAL, spec.dtype), elementwise, source.device, 1, max_context, max_rows=chunk,
        fuse=USUAL.fuse, context=torch.zeros(1, dtype=torch.int64, device=source.device),
    )  # fmt: skip
    return Decoder(source, workspace, chunk)


class _NoOps(OpTable):
    """Products and attention have backends, whose kernels are built by their problems: nothing here."""

    def linear(
        self, phase: Phase, role: str, layer: int, weights: Linear, x: torch.Tensor, out: torch.Tensor, calls: int = 1
    ) -> Bound:
        return Bound("linear", role, _nothing)

    def attention(
        self, phase: Phase, layer: int, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
        context: torch.Tensor, out: torch.Tensor, batch: int = 1,
    ) -> Bound:  # fmt: skip
        return Bound("attention", phase, _nothing)

    def linear_attention(
        self, phase: Phase, layer: int, spec: GatedDelta, inputs: DeltaInputs, weights: DeltaWeights,
        state: DeltaState, out: torch.Tensor, batch: int = 1,
    ) -> Bound:  # fmt: skip
        return Bound("linear-attention", phase, _nothing)


def _nothing() -> None:
    """Is not run."""
