"""What one decode step moves and multiplies, as a function of the context (computed by `harness.traffic`)."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from harness.specs.base import Frozen


class SlidingCache(Frozen):
    """Layers that look at no more than the last `window` positions; their share of the cache stops growing there."""

    window: PositiveInt
    bytes_per_context_token: PositiveInt
    flop_per_context_token: PositiveInt


class RoutedExperts(Frozen):
    """The experts of all layers whose mixtures have the same numbers of them."""

    num_experts: PositiveInt
    """Of one layer."""
    experts_per_token: PositiveInt
    num_bytes: PositiveInt
    """Of all experts of these layers together."""

    def num_distinct(self, batch: int) -> float:
        """Experts of one layer that a step of `batch` tokens reads: E (1 - (1 - k/E)^batch), the expectation where each
        token takes any k of the E alike and no two tokens agree (`DecodeTraffic.experts_assumption`)."""
        return self.experts_per_token + self.num_experts * self._more_than_one_token_takes(batch)

    def more_bytes(self, batch: int) -> int:
        """What a step of `batch` tokens reads beyond a step of one, whose experts weight_read_bytes has."""
        return round(self.num_bytes * self._more_than_one_token_takes(batch))

    def _more_than_one_token_takes(self, batch: int) -> float:
        """Share of all experts; exactly 0 for one token."""
        not_taken = 1 - self.experts_per_token / self.num_experts
        return not_taken - not_taken**batch


class DecodeTraffic(Frozen):
    """Bytes and FLOP of one decode step, of one request or of a batch of requests at the same context.

    A step's context is the number of positions its query attends to, its own included.
    """

    bytes_source: Literal["logical", "counters"] = "logical"
    """logical: worked out from shapes; counters: read from the hardware."""
    tensors_source: Literal["headers", "config"]
    """Whether the weights' sizes are from safetensors headers or derived from config.json."""
    weight_read_bytes: PositiveInt
    """Weights that a step of one request reads: all layers, the final norm, the output head. Resident is not read: no
    vision tower, no draft head, of the embedding one row, of a mixture the experts of one token."""
    routed_experts: tuple[RoutedExperts, ...] = ()
    """The part of it that grows with the batch, by numbers of experts; empty for dense models."""
    embedding_row_bytes: PositiveInt
    """The one row of the input embedding that a step reads, not part of weight_read_bytes."""
    kv_bytes_per_context_token: NonNegativeInt
    """Key and value bytes of one position, all layers: what the first position costs."""
    sliding_caches: tuple[SlidingCache, ...] = ()
    """The part of it that stops growing, by window."""
    state_read_bytes: NonNegativeInt = 0
    """Recurrent and convolution state of hybrid models: whole, every step, whatever the context."""
    state_write_bytes: NonNegativeInt = 0
    """The same again: the recurrent state is changed everywhere, the convolution's is shifted."""
    resident_weight_bytes: PositiveInt
    """What the weights occupy, read or not."""
    linear_flop: PositiveInt
    """All matrix products with weights, output head included: 2 FLOP a multiply-add."""
    attention_flop_per_context_token: NonNegativeInt
    """QK^T and PV against one position, all layers."""
    state_flop: NonNegativeInt = 0
    """What a token does with recurrent and convolution state, all layers."""

    @property
    def experts_assumption(self) -> Literal["uniform routing"] | None:
        """What the bytes of a batch rest on where tokens choose experts; null for dense models."""
        return "uniform routing" if self.routed_experts else None

    def step_weight_bytes(self, batch: int = 1) -> int:
        """Weights that a step of `batch` tokens reads: once for all of them, but for the experts that they choose."""
        return self.weight_read_bytes + sum(routed.more_bytes(batch) for routed in self.routed_experts)

    def step_bytes(self, context: int, batch: int = 1) -> int:
        """Weights once; for each request an embedding row, its cache up to `context` read and one position written,
        its state read and written."""
        kv = self.cache_bytes(context) + self.kv_bytes_per_context_token
        state = self.state_read_bytes + self.state_write_bytes
        return self.step_weight_bytes(batch) + batch * (self.embedding_row_bytes + kv + state)

    def cache_bytes(self, context: int) -> int:
        """The cache that a query at this context sees: all of it, or each window's last positions."""
        out_of_sight = sum(
            sliding.bytes_per_context_token * max(0, context - sliding.window) for sliding in self.sliding_caches
        )
        return self.kv_bytes_per_context_token * context - out_of_sight

    def step_flop(self, context: int, batch: int = 1) -> int:
        """Every request does all of the arithmetic."""
        out_of_sight = sum(
            sliding.flop_per_context_token * max(0, context - sliding.window) for sliding in self.sliding_caches
        )
        attention = self.attention_flop_per_context_token * context - out_of_sight
        return batch * (self.linear_flop + attention + self.state_flop)
