"""What was built ahead of its first use."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from harness.specs.base import Frozen


class Build(Frozen):
    """A library, or Triton's kernels for one problem in every setting that was asked for."""

    target: str
    """cpu, host, or a card's architecture."""
    what: Literal["library", "triton"]
    kernel: str
    """A source as kernels/ has it, or a backend and its problem, or what else launches kernels."""
    outcome: Literal["built", "cached", "failed", "too large", "skipped"]
    """cached: an earlier build or use had made all of it. too large: one setting, which compiles, but its block takes
    more than the target has; the row of the other settings stands before it. skipped: its compiler is not here, or
    nobody asked."""
    why: str | None = None
    """Of what failed, is too large or was skipped."""
    time_s: NonNegativeFloat | None = None
    num_bytes: NonNegativeInt | None = None
    """Of libraries or binaries."""
    shared_bytes: NonNegativeInt | None = None
    """The most that a block of these kernels takes of shared memory; null for libraries."""
