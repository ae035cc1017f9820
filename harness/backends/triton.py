"""What backends of Triton kernels share: a declared tuning space, and a Config made from one of its settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from harness.specs.problem import Parameters
from harness.triton_kernels import load_triton


def config_of(op: str, parameters: Parameters) -> Any:
    """The op's Config with these fields; with none, the first that it declares."""
    module = load_triton(op)
    return module.Config(**parameters) if parameters else module.CONFIGS[0]


def declared(op: str, fits: Callable[[Any], bool] = lambda config: True) -> Sequence[Parameters]:
    """The op's tuning space as settings, as far as its Configs fit."""
    return [dataclasses.asdict(config) for config in load_triton(op).CONFIGS if fits(config)]
