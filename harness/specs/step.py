"""What one decode step moves and multiplies, as a function of the context (computed by `harness.traffic`)."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from harness.specs.base import Frozen


class SlidingCache(Frozen):
    """Layers that look at no more than the last `window` positions; their share of the cache stops growing there."""

    window: PositiveInt
    bytes_per_context_token: PositiveInt
    flop_per_context_token: PositiveInt


class DecodeTraffic(Frozen):
    """Bytes and FLOP of one decode step of a single request.

    A step's context is the number of positions its query attends to, its own included.
    """

    bytes_source: Literal["logical", "counters"] = "logical"
    """logical: worked out from shapes; counters: read from the hardware."""
    tensors_source: Literal["headers", "config"]
    """Whether the weights' sizes are from safetensors headers or derived from config.json."""
    weight_read_bytes: PositiveInt
    """Weights that every step reads: all layers, the final norm, the output head. Resident is not read: no vision
    tower, no draft head, of the embedding one row."""
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

    def step_bytes(self, context: int) -> int:
        """Weights once, the cache up to `context` read, one position written, state read and written."""
        kv = self.cache_bytes(context) + self.kv_bytes_per_context_token
        state = self.state_read_bytes + self.state_write_bytes
        return self.weight_read_bytes + self.embedding_row_bytes + kv + state

    def cache_bytes(self, context: int) -> int:
        """The cache that a query at this context sees: all of it, or each window's last positions."""
        out_of_sight = sum(
            sliding.bytes_per_context_token * max(0, context - sliding.window) for sliding in self.sliding_caches
        )
        return self.kv_bytes_per_context_token * context - out_of_sight

    def step_flop(self, context: int) -> int:
        out_of_sight = sum(
            sliding.flop_per_context_token * max(0, context - sliding.window) for sliding in self.sliding_caches
        )
        attention = self.attention_flop_per_context_token * context - out_of_sight
        return self.linear_flop + attention + self.state_flop
