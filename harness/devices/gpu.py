"""A GPU as torch sees it: CUDA, ROCm and Hygon DCU alike. Needs torch, and says nothing that torch does not."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal

from harness.specs.device import DeviceInfo

if TYPE_CHECKING:
    import torch

DCU_ARCHS = ("gfx926", "gfx928", "gfx936", "gfx938")
"""Architectures that only Hygon's cards have; a gfx906 may be a Z100 or an MI50."""


def detect_gpu(device: torch.device) -> DeviceInfo:
    """The card behind a torch device; what its torch does not report is null."""
    import torch

    seen = torch.cuda.get_device_properties(device)
    hip_arch = getattr(seen, "gcnArchName", "").partition(":")[0]
    is_hip = torch.version.hip is not None
    kind: Literal["cuda", "rocm", "dcu"] = "cuda" if not is_hip else "dcu" if hip_arch in DCU_ARCHS else "rocm"
    return DeviceInfo(
        kind=kind,
        name=seen.name,
        arch=hip_arch if is_hip else f"sm_{seen.major}{seen.minor}",
        num_compute_units=seen.multi_processor_count,
        wave_width=getattr(seen, "warp_size", None),
        memory_bytes=seen.total_memory,
        last_level_cache_bytes=getattr(seen, "L2_cache_size", None) or None,
    )


def gpus_here() -> dict[str, DeviceInfo]:
    """A card of each architecture that torch sees; none without torch."""
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch

    cards = [detect_gpu(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    return {card.arch: card for card in cards if card.arch is not None}
