"""Memory that the launches of one backend share: they follow one another, on a stream or on the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Scratch:
    """Grows to what the largest launch asks for; earlier launches keep what they were bound to."""

    def __init__(self) -> None:
        self._largest: Tensor | None = None
        self.num_bytes = 0
        """Of all that was ever handed out: launches live as long as their layers."""

    def floats(self, count: int, device: torch.device | None = None) -> Tensor:
        """At least `count` fp32 values, of any content."""
        import torch

        if self._largest is None or self._largest.numel() < count:
            self._largest = torch.empty(count, dtype=torch.float32, device=device)
            self.num_bytes += self._largest.nbytes
        return self._largest
