"""The forward pass as a list of launches.

A step over new tokens makes the same calls on the same buffers every time: only the tokens, the cache's contents and
one number, the context, change, and all three live in memory that the launches read. So a step is built once for each
number of tokens and then only run: by a loop on a CPU, as one captured graph on a GPU. Prefill is the same list over
more rows, and so is a batch: rows of requests that go on together.

    advance  embed
    each layer:  (add+)norm  mixer  add+norm  MLP          the parts: attention, gated_delta; mlp, moe
    add+norm  lm_head  argmax
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from harness.engines.native.attention import AttentionKind
from harness.engines.native.gated_delta import GatedDeltaKind
from harness.engines.native.mlp import MlpLayer
from harness.engines.native.moe import MoeLayer
from harness.engines.native.ops import Bound
from harness.engines.native.weights import Linear, TensorSource
from harness.engines.native.workspace import Rows, Workspace
from harness.specs.layer import LayerKind
from harness.specs.layout import embedding_name, final_norm_name
from harness.specs.parts.attention import Attention
from harness.specs.parts.gated_delta import GatedDelta
from harness.specs.parts.mlp import GatedMlp, Moe


class Step:
    """The launches of one forward pass."""

    def __init__(self, launches: Iterable[Bound]) -> None:
        self.launches = tuple(launches)
        # The loop is the engine's overhead on a CPU: it walks plain callables, no attributes.
        self._runs = tuple(bound.run for bound in self.launches)

    def run(self) -> None:
        for launch in self._runs:
            launch()


class Decoder:
    """A model with a cache for each of up to `batch` requests that go on together, of up to `max_context` positions."""

    def __init__(self, source: TensorSource, workspace: Workspace, prefill_chunk: int) -> None:
        self.workspace, spec, prefix = workspace, workspace.spec, workspace.spec.tensor_prefix
        w = workspace
        self._embedding = source.tensor(embedding_name(spec))
        counts = Counter(layer.mixer for layer in spec.layers)
        kinds = {mixer: _mixer_kind(mixer, count, w) for mixer, count in counts.items()}
        self._layers = [
            _Layer(kind, kinds[kind.mixer], w, index, source, f"{prefix}layers.{index}.")
            for index, kind in enumerate(spec.layers)
        ]
        self._final_norm = w.norm(source, final_norm_name(spec))
        self._head = Linear(self._embedding, None) if source.tied else source.linear(spec.lm_head)
        self.prefill_chunk = prefill_chunk
        self._prompt = torch.zeros(prefill_chunk, dtype=torch.int64, device=w.device)
        self.token = torch.zeros(w.batch, dtype=torch.int64, device=w.device)
        """int64 [batch]: what the last step chose for each request, and what the next one takes in."""
        self.logits = torch.empty(w.batch, spec.vocab_size, dtype=w.dtype, device=w.device)
        """[batch, vocab] of each request's last token; overwritten by the next step."""
        self._prompt_steps: dict[tuple[int, int], Step] = {}
        self._decode_steps: dict[int, Step] = {}

    @property
    def context(self) -> torch.Tensor:
        """int64 [1]: positions taken in."""
        return self.workspace.context

    def decode_step(self, batch: int = 1) -> Step:
        """The launches that take in the tokens of the first `batch` requests and choose the next; built when first
        asked for."""
        if batch not in self._decode_steps:
            rows, token = Rows.of_decode(batch), self.token[:batch]
            self._decode_steps[batch] = Step(self._launches(rows, token, self.logits[:batch], token))
        return self._decode_steps[batch]

    def _prompt_step(self, num_tokens: int, request: int) -> Step:
        if (num_tokens, request) not in self._prompt_steps:
            own = slice(request, request + 1)
            rows = Rows.of_prompt(num_tokens, request)
            launches = self._launches(rows, self._prompt[:num_tokens], self.logits[own], self.token[own])
            self._prompt_steps[num_tokens, request] = Step(launches)
        return self._prompt_steps[num_tokens, request]

    def prefill(self, prompts: Sequence[Sequence[int]], run: Callable[[Step], None] = Step.run) -> None:
        """Take in a prompt a request, all of one length, from empty caches and chunk by chunk; the first output token
        of each is chosen at the end. run: how a chunk's launches are made."""
        for request, ids in enumerate(prompts):
            self.context.zero_()
            for layer in self._layers:
                layer.mixer.reset(request)
            for chunk in torch.split(torch.tensor(ids, dtype=torch.int64), len(self._prompt)):
                self._prompt[: len(chunk)].copy_(chunk)
                run(self._prompt_step(len(chunk), request))

    def pretend(self, batch: int, num_positions: int) -> None:
        """As if the first `batch` requests had taken in so many positions: caches and states hold random values."""
        for layer in self._layers:
            for request in range(batch):
                layer.mixer.fill(request)
        self.context.fill_(num_positions)

    def _launches(self, rows: Rows, ids: torch.Tensor, logits: torch.Tensor, token: torch.Tensor) -> Iterator[Bound]:
        w, e = self.workspace, self.workspace.elementwise
        hidden, normed, delta = (w.activation(name, w.spec.hidden_size, rows) for name in ("hidden", "normed", "delta"))
        yield Bound("elementwise", "advance", e.advance(w.context, rows.advance))
        yield Bound("elementwise", "embed", e.embed(ids, self._embedding, hidden))
        for index, layer in enumerate(self._layers):
            before = layer.input_norm
            norm = e.add_rmsnorm(hidden, delta, before, normed) if index else e.rmsnorm(hidden, before, normed)
            yield Bound("elementwise", "input_norm", norm)
            yield from layer.mixer.launches(rows, normed, delta)
            norm = e.add_rmsnorm(hidden, delta, layer.post_attention_norm, normed)
            yield Bound("elementwise", "post_attention_norm", norm)
            yield from layer.mlp.launches(rows, normed, delta)
        last = rows.last
        norm = e.add_rmsnorm(hidden[last], delta[last], self._final_norm, normed[last])
        yield Bound("elementwise", "final_norm", norm)
        yield w.ops.linear("decode", "lm_head", -1, self._head, normed[last], logits)
        for row, chosen in zip(logits, torch.split(token, 1), strict=True):
            yield Bound("sampling", "argmax", e.argmax(row, chosen))


class _Layer:
    """A mixer and an MLP, each behind its norm."""

    def __init__(
        self, kind: LayerKind, mixers: AttentionKind | GatedDeltaKind, w: Workspace, index: int, source: TensorSource,
        at: str,
    ) -> None:  # fmt: skip
        self.mixer = mixers.layer(index, source, at)
        self.mlp = _mlp(kind.mlp, w, index, source, at)
        self.input_norm = w.norm(source, f"{at}input_layernorm.weight")
        self.post_attention_norm = w.norm(source, f"{at}post_attention_layernorm.weight")


def _mixer_kind(mixer: object, num_layers: int, w: Workspace) -> AttentionKind | GatedDeltaKind:
    if isinstance(mixer, Attention):
        return AttentionKind(mixer, num_layers, w)
    if isinstance(mixer, GatedDelta):
        return GatedDeltaKind(mixer, num_layers, w)
    raise TypeError(f"{mixer} has no layer here: `runnable` lets no such model through")


def _mlp(mlp: object, w: Workspace, index: int, source: TensorSource, at: str) -> MlpLayer | MoeLayer:
    if isinstance(mlp, GatedMlp):
        return MlpLayer(mlp, w, index, source, at)
    if isinstance(mlp, Moe):
        return MoeLayer(mlp, w, index, source, at)
    raise TypeError(f"{mlp} has no layer here: `runnable` lets no such model through")
