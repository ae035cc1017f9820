"""What mixers have in common that keep a state of fixed size instead of a cache.

A step reads the state whole and writes it whole, whatever the context: the recurrent state changes everywhere, and the
convolution's moves on by one position.
"""

from abc import abstractmethod
from typing import ClassVar

from pydantic import PositiveInt

from harness.specs.base import Frozen
from harness.specs.tensor import dtype_bytes


class NoCache(Frozen):
    """A mixer of which no position keeps anything."""

    kv_values: ClassVar[int] = 0
    flop_per_pair: ClassVar[int] = 0
    prefill_flop_per_pair: ClassVar[int] = 0
    window: ClassVar[None] = None

    def num_pairs(self, num_tokens: int) -> int:
        """Positions do not meet in pairs."""
        return 0


class Recurrent(NoCache):
    """A recurrent state behind a short causal convolution."""

    conv_kernel: PositiveInt
    """Positions that the convolution sees, its own included."""
    state_dtype: str = "F32"
    """Type of the recurrent state (safetensors name); the convolution's is the model's."""

    flop_per_state_value: ClassVar[int]
    """Of one token, outside products with weights."""

    @property
    @abstractmethod
    def state_values(self) -> int:
        """Of the recurrent state, which a step reads and writes."""

    @property
    @abstractmethod
    def conv_channels(self) -> int:
        """Channels that the convolution goes over."""

    @property
    def conv_values(self) -> int:
        """Of the convolution's state: the inputs of the positions before, which a step reads and shifts."""
        return self.conv_channels * (self.conv_kernel - 1)

    @property
    def state_flop(self) -> int:
        """Of one token: its update of the state and its question to it, and a multiply-add for each tap of the
        convolution. Vectors (gates, norms, step sizes) are not counted."""
        return self.flop_per_state_value * self.state_values + 2 * self.conv_channels * self.conv_kernel

    def state_bytes(self, value_bytes: int) -> int:
        """Recurrent state in its own type, the convolution's in the model's, of `value_bytes` each."""
        return self.state_values * dtype_bytes(self.state_dtype) + self.conv_values * value_bytes
