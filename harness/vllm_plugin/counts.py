"""How often each path was taken, counted where it runs: on a CPU by the op, on a card by the kernels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from harness.vllm_plugin.shared import MAX_PATHS, new_counters


class Counts(Protocol):
    """One number a path, by its place."""

    def add(self, place: int) -> None:
        """One more."""

    def on_card(self, place: int) -> Tensor | None:
        """The number itself, int64, where kernels can add to it."""

    def collect(self) -> None:
        """Makes `of`, and the files that other processes read, those of now."""

    def of(self, place: int) -> int:
        """What was counted until `collect`, or until now."""


class OpCounts:
    """In memory that other processes can look at any time, and that outlives this one."""

    def __init__(self, folder: Path | None) -> None:
        self._numbers = new_counters(folder, os.getpid())

    def add(self, place: int) -> None:
        self._numbers[place] += 1

    def on_card(self, place: int) -> Tensor | None:
        return None

    def collect(self) -> None:
        """They always are."""

    def of(self, place: int) -> int:
        return self._numbers[place]


class CardCounts:
    """In the card's memory what a captured graph replays, which runs neither op nor Python; else here. Others see what
    was last collected."""

    def __init__(self, folder: Path | None, device: torch.device) -> None:
        self._shared = np.frombuffer(new_counters(folder, os.getpid()), dtype=np.int64)
        # 16 bytes apart: Triton compiles a kernel anew for an address that is no multiple of 16.
        self._numbers = torch.zeros((MAX_PATHS, 2), dtype=torch.int64, device=device)[:, 0]
        self._here = np.zeros(MAX_PATHS, dtype=np.int64)  # numpy: a number is changed ten times as fast as torch's

    def add(self, place: int) -> None:
        """Of a kernel that does not count itself: in a graph by a launch beside it, and else here, since vLLM's own
        side of a comparison would pay for such launches."""
        if self._numbers.is_cuda and torch.cuda.is_current_stream_capturing():
            self._numbers[place].add_(1)
        else:
            self._here[place] += 1

    def on_card(self, place: int) -> Tensor | None:
        return self._numbers[place]

    def collect(self) -> None:
        """Waits for the card."""
        self._shared[:] = self._numbers.cpu().numpy() + self._here

    def of(self, place: int) -> int:
        return int(self._shared[place])
