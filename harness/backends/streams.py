"""How our CPU kernels read memory: in how many streams at once, and how far ahead of a load each is prefetched.

From sweeps over 1 to 16 streams and 0 to 8192 bytes (docs/lab-log.md). A Sapphire Rapids reads 1.3 times as fast with 8
streams as with one, at any distance from 512 to 2048. A Zen 3 reads at 0.9 of the probe with 4 and at 0.77 with 8, and
wants a short distance. So the A/B tries a few, and the feature that tells the two apart decides where none has run.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.specs.device import DeviceInfo
from harness.specs.problem import Parameters

WITH_AVX512 = (8, 1024)
WITHOUT = (4, 256)
DISTANCES = (0, 256, 1024)


def streams_or_default(
    device: DeviceInfo, num_streams: int | None, prefetch_bytes: int | None
) -> tuple[int, int]:  # fmt: skip
    """(num_streams, prefetch_bytes), with this CPU's where one is None."""
    streams, distance = WITH_AVX512 if "avx512f" in device.features else WITHOUT
    return streams if num_streams is None else num_streams, distance if prefetch_bytes is None else prefetch_bytes


def stream_space() -> Sequence[Parameters]:
    return [{"num_streams": streams, "prefetch_bytes": distance} for streams in (4, 8) for distance in DISTANCES]
