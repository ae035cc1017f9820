"""The two walls of a step: memory and compute.

floor_s = max(bytes / bandwidth, FLOP / peak) is the least time a step can take on a device (Williams et al., 2009:
"Roofline"). The ridge point, peak / bandwidth in FLOP a byte, divides the two: a single-request decode step of a bf16
model does about 1 FLOP a byte and stands far left of any device's ridge (hundreds), so its floor is the bytes'.
"""

from dataclasses import dataclass
from typing import Literal

Wall = Literal["memory", "compute"]


@dataclass(frozen=True)
class Floor:
    """Both walls of the same work, in seconds; compute is null where the peak is not known."""

    memory_s: float
    compute_s: float | None

    @property
    def floor_s(self) -> float:
        """The larger one: no device does the work faster."""
        return max(self.memory_s, self.compute_s or 0.0)

    @property
    def bound(self) -> Wall | None:
        """Which of them it is; null where only one is known."""
        if self.compute_s is None:
            return None
        return "compute" if self.compute_s > self.memory_s else "memory"


def memory_floor_s(read_bytes: float, roof_bytes_per_s: float) -> float:
    """Least time to move so many bytes."""
    return read_bytes / roof_bytes_per_s


def compute_floor_s(flop: float, peak_flop_per_s: float) -> float:
    """Least time to do so much arithmetic."""
    return flop / peak_flop_per_s


def ridge_flop_per_byte(peak_flop_per_s: float, roof_bytes_per_s: float) -> float:
    """Arithmetic intensity at which a device's two walls meet."""
    return peak_flop_per_s / roof_bytes_per_s


def frac(achieved: float | None, available: float | None) -> float | None:
    """A share of what was available; null when either is not known or nothing was available."""
    return None if achieved is None or not available else achieved / available
