"""One call of an operation, as frozen data: what a backend is asked whether it can do, and how fast.

A problem knows its arithmetic (one multiply-add is 2 FLOP) and not its bytes: those are the backend's to declare,
because a backend that keeps a second copy, or still reads bf16 behind a quantized name, moves other bytes.
"""

from typing import Annotated

from pydantic import Field, PositiveInt

from harness.specs.base import Frozen

Parameters = dict[Annotated[str, Field(min_length=1)], int | str]
"""What a backend with a tuning space is set to: block sizes, waves, splits."""


class LinearProblem(Frozen):
    """out[m, n] = x[m, k] @ weight[n, k]^T (+ bias[n])."""

    m: PositiveInt
    """Rows of x: 1 in a single-request decode step, the chunk's length in prefill."""
    n: PositiveInt
    """Output features."""
    k: PositiveInt
    """Input features."""
    dtype: str
    """Of x, weight and out, as safetensors names it."""
    bias: bool = False

    @property
    def flop(self) -> int:
        """2 m n k: the bias's adds are left out, as every published figure does."""
        return 2 * self.m * self.n * self.k


class AttentionProblem(Frozen):
    """Causal attention of m new queries over a key/value cache with `max_context` places.

    The queries are the last m of the context; query i sees the context's first (context - m + 1 + i) entries.
    """

    m: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    max_context: PositiveInt
    """Places in the cache; how many of them are filled changes from step to step."""
    dtype: str

    def flop(self, context: int) -> int:
        """QK^T and PV over the visible entries: 4 head_dim FLOP a head and visible pair."""
        visible = self.m * context - self.m * (self.m - 1) // 2
        return 4 * self.num_heads * self.head_dim * visible


class DeltaProblem(Frozen):
    """The gated delta rule over m new tokens of one request, between its projections: a causal convolution over query,
    key and value, the rule on a recurrent state that is fp32 and changed in place, and a gated norm."""

    m: PositiveInt
    num_key_heads: PositiveInt
    num_value_heads: PositiveInt
    """A multiple of num_key_heads: each key head serves neighbouring value heads."""
    key_head_dim: PositiveInt
    value_head_dim: PositiveInt
    conv_kernel: PositiveInt
    """Positions that the convolution sees, its own included."""
    dtype: str
    """Of inputs, weights, convolution state and output."""

    @property
    def conv_channels(self) -> int:
        """Query, key and value side by side."""
        return 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim

    @property
    def state_values(self) -> int:
        """Of the recurrent state."""
        return self.num_value_heads * self.key_head_dim * self.value_head_dim
