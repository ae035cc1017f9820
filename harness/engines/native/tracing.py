"""Traces by torch's profiler, as `harness profile` reads them.

On a CPU the profiler sees no call that torch did not make, so each launch of ours stands under a mark of its own. On a
GPU it sees the kernels themselves, those within a captured graph too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torch.profiler import ProfilerActivity, profile, record_function

from harness.specs.trace import OWN_LAUNCH

if TYPE_CHECKING:
    from harness.engines.native.decoder import Step


@contextlib.contextmanager
def traced(path: Path, on_gpu: bool) -> Iterator[None]:
    """What runs inside is in the file behind it: Chrome JSON, gzipped by its name's end."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        yield
    profiler.export_chrome_trace(str(path))


def run_marked(step: Step) -> None:
    """The step's launches, each under its mark."""
    for bound in step.launches:
        with record_function(f"{OWN_LAUNCH}{bound.kind}::{bound.role}"):
            bound.run()
