"""The forward pass as a list of launches.

A step over m new tokens makes the same calls on the same buffers every time: only the tokens, the cache's contents and
one number, the context, change, and all three live in memory that the launches read. So a step is built once for each
m and then only run: by a loop on a CPU, as one captured graph on a GPU. Prefill is the same list with larger m.

    advance  embed
    each layer:  (add+)norm  qkv  norm+rope+cache  attention  o  add+norm  gate_up  silu*mul  down
    add+norm  lm_head  argmax
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from harness.engines.native.elementwise import Elementwise
from harness.engines.native.memory import empty
from harness.engines.native.ops import Bound, OpTable, Phase
from harness.engines.native.rope import rope_table
from harness.engines.native.weights import TORCH_DTYPES, LayerWeights, Linear, ModelWeights
from harness.specs.model import ModelSpec


class Step:
    """The launches of one forward pass over m new tokens."""

    def __init__(self, launches: Iterable[Bound]) -> None:
        self.launches = tuple(launches)
        # The loop is the engine's overhead on a CPU: it walks plain callables, no attributes.
        self._runs = tuple(bound.run for bound in self.launches)

    def run(self) -> None:
        for launch in self._runs:
            launch()


class Buffers:
    """Activations of up to `rows` tokens, allocated once; a step over fewer takes the first rows."""

    def __init__(self, spec: ModelSpec, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        def rows_of(width: int) -> torch.Tensor:
            return torch.empty(rows, width, dtype=dtype, device=device)

        self.ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self.hidden, self.normed, self.delta = (rows_of(spec.hidden_size) for _ in range(3))
        attention, mlp = spec.dense()
        self.qkv = rows_of(attention.q_size + 2 * attention.kv_size)
        self.q, self.attended = rows_of(attention.q_size), rows_of(attention.q_size)
        self.gate_up = rows_of(2 * mlp.intermediate_size)
        self.activated = rows_of(mlp.intermediate_size)
        self.logits = torch.empty(1, spec.vocab_size, dtype=dtype, device=device)


class Decoder:
    """A model with its cache for one request of up to `max_context` positions."""

    def __init__(
        self, spec: ModelSpec, weights: ModelWeights, ops: OpTable, elementwise: Elementwise, max_context: int,
        prefill_chunk: int, device: torch.device,
    ) -> None:  # fmt: skip
        self.spec, self._weights, self._ops, self.elementwise = spec, weights, ops, elementwise
        dtype = TORCH_DTYPES[ops.dtype]
        self._chunk = min(prefill_chunk, max_context)
        self._buffers = Buffers(spec, self._chunk, dtype, device)
        self._heads, _ = spec.dense()
        cache = (spec.num_layers, 2, self._heads.num_kv_heads, max_context, self._heads.head_dim)
        self.max_context = max_context
        # Zeroed: a masked attention multiplies unfilled places by 0, and 0 x NaN is NaN; and every page is touched.
        self._cache = empty(cache, dtype, device).zero_()
        self._cos, self._sin = rope_table(spec, self._heads.head_dim, max_context, device)
        self.context = torch.zeros(1, dtype=torch.int64, device=device)
        self._steps: dict[int, Step] = {}

    @property
    def logits(self) -> torch.Tensor:
        """[1, vocab] of the last token that went in; overwritten by the next step."""
        return self._buffers.logits

    @property
    def token(self) -> torch.Tensor:
        """int64 [1]: the token that the last step chose, and that the next one takes in."""
        return self._buffers.ids[:1]

    def step(self, m: int) -> Step:
        """The launches over m new tokens; built when first asked for."""
        if m not in self._steps:
            self._steps[m] = Step(self._launches(m))
        return self._steps[m]

    def distinct_linears(self) -> dict[str, Linear]:
        """The first layer's products and the output head, by role: every shape that a decode step multiplies with."""
        return {**self._weights.layers[0].linears, "lm_head": Linear(self._weights.lm_head, None)}

    def prefill(self, ids: Sequence[int]) -> None:
        """Take in a prompt from an empty cache, chunk by chunk; the first output token is chosen at the end."""
        self.context.zero_()
        tokens = torch.tensor(ids, dtype=torch.int64)
        for chunk in torch.split(tokens, self._chunk):
            self._buffers.ids[: len(chunk)].copy_(chunk)
            self.step(len(chunk)).run()

    def _launches(self, m: int) -> Iterator[Bound]:
        phase: Phase = "decode" if m == 1 else "prefill"
        b, e, spec = self._buffers, self.elementwise, self.spec
        hidden, normed, delta = b.hidden[:m], b.normed[:m], b.delta[:m]
        yield Bound("elementwise", "advance", e.advance(self.context, m))
        yield Bound("elementwise", "embed", e.embed(b.ids[:m], self._weights.embedding, hidden))
        for index, layer in enumerate(self._weights.layers):
            if index == 0:
                norm = e.rmsnorm(hidden, layer.input_norm, spec.rms_norm_eps, normed)
            else:
                norm = e.add_rmsnorm(hidden, delta, layer.input_norm, spec.rms_norm_eps, normed)
            yield Bound("elementwise", "input_norm", norm)
            yield from self._attention(phase, index, layer, m)
            norm = e.add_rmsnorm(hidden, delta, layer.post_attention_norm, spec.rms_norm_eps, normed)
            yield Bound("elementwise", "post_attention_norm", norm)
            yield from self._mlp(phase, index, layer, m)
        # Only the last token's logits are asked for.
        last = slice(m - 1, m)
        norm = e.add_rmsnorm(b.hidden[last], b.delta[last], self._weights.final_norm, spec.rms_norm_eps, b.normed[last])
        yield Bound("elementwise", "final_norm", norm)
        head = Linear(self._weights.lm_head, None)
        yield self._ops.linear("decode", "lm_head", -1, head, b.normed[last], b.logits)
        yield Bound("sampling", "argmax", e.argmax(b.logits[0], self.token))

    def _attention(self, phase: Phase, index: int, layer: LayerWeights, m: int) -> Iterator[Bound]:
        b, a, (k_cache, v_cache) = self._buffers, self._heads, self._cache[index]
        qkv = b.qkv[:m]
        q, k, v = torch.split(qkv, [a.q_size, a.kv_size, a.kv_size], dim=1)
        outs = {"qkv": qkv, "q": q, "k": k, "v": v}
        yield from self._linears(phase, index, layer, b.normed[:m], outs)
        heads = (m, a.num_heads, a.head_dim)
        kv_heads = (m, a.num_kv_heads, a.head_dim)
        rotated, attended = b.q[:m].view(heads), b.attended[:m].view(heads)
        rope = self.elementwise.qk_norm_rope_cache(
            q.view(heads), k.view(kv_heads), v.view(kv_heads), layer.q_norm, layer.k_norm, self.spec.rms_norm_eps,
            self._cos, self._sin, self.context, rotated, k_cache, v_cache,
        )  # fmt: skip
        yield Bound("elementwise", "qk_norm_rope_cache", rope)
        yield self._ops.attention(phase, index, rotated, k_cache, v_cache, self.context, attended)
        yield from self._linears(phase, index, layer, b.attended[:m], {"o": b.delta[:m]})

    def _mlp(self, phase: Phase, index: int, layer: LayerWeights, m: int) -> Iterator[Bound]:
        b = self._buffers
        gate_up = b.gate_up[:m]
        gate, up = gate_up.chunk(2, dim=1)
        yield from self._linears(phase, index, layer, b.normed[:m], {"gate_up": gate_up, "gate": gate, "up": up})
        yield Bound("elementwise", "silu_mul", self.elementwise.silu_mul(gate, up, b.activated[:m]))
        yield from self._linears(phase, index, layer, b.activated[:m], {"down": b.delta[:m]})

    def _linears(
        self, phase: Phase, index: int, layer: LayerWeights, x: torch.Tensor, outs: dict[str, torch.Tensor]
    ) -> Iterator[Bound]:
        """The products among `outs` that this layer has: fused ones, or their parts."""
        for role, out in outs.items():
            if role in layer.linears:
                yield self._ops.linear(phase, role, index, layer.linears[role], x, out)
