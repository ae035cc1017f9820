"""What a comparison needs of an operation: places to rotate through, fresh inputs, and what is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from harness.backends.base import Executor, Launch
from harness.specs.problem import Parameters

NUM_CHECKS = 2
"""Fresh inputs that a side is checked on, at the first and the last place: a result that was kept from the first is
not that of the second."""


@dataclass(frozen=True)
class Bound:
    """A backend on every place."""

    launches: tuple[Launch, ...]
    read_bytes: int
    """Of one call, by the backend's own word."""
    write_bytes: int
    kept_bytes: int
    """Memory that the backend says it keeps beside the operands, for all places together."""
    note: str = ""
    """What the backend settled on by itself."""


class Places(Protocol):
    """One problem's tensors at several places of memory, more together than any cache holds; nothing is in them yet, so
    they may be without memory as well."""

    num_places: int

    def bind(self, backend: type[Any], parameters: Parameters, executor: Executor) -> Bound:
        """May raise whatever the backend raises."""


class Operands(Places, Protocol):
    """Places that are filled, and what is right for them; the same for all sides."""

    flop: int | None
    """Of one call, where it is bound by arithmetic."""

    def pose(self, check: int) -> int:
        """Puts the inputs of a check in place and poisons the output; returns its place."""

    def fault(self, check: int) -> str:
        """After the launch of that place: what is wrong with its result; empty where nothing is."""

    def renew(self) -> None:
        """Other random inputs, before a block of samples: a result that was kept for the old ones would be wrong."""

    def changed(self) -> str:
        """Which operand is not as it was left: weights, cache or inputs; empty where all are."""


class Watched:
    """Tensors that no backend may write to, by their checksums."""

    def __init__(self, **tensors: Tensor) -> None:
        self._tensors = tensors
        self._sums = {name: checksum(tensor) for name, tensor in tensors.items()}

    def changed(self) -> str:
        """The first that changed since it was watched or accepted."""
        return next((name for name, tensor in self._tensors.items() if checksum(tensor) != self._sums[name]), "")

    def accept(self, *names: str) -> None:
        """We changed these ourselves."""
        for name in names:
            self._sums[name] = checksum(self._tensors[name])


def checksum(tensor: Tensor) -> int:
    """Wrapping sum of the 64-bit words and of the bytes of what is left: as fast as memory can be read."""
    content = tensor.contiguous().flatten().view(torch.uint8)
    words = content[: content.numel() // 8 * 8]
    return int(words.view(torch.int64).sum()) + int(content[words.numel() :].sum())


def poison(tensor: Tensor) -> None:
    """What is not written stays NaN, and shows."""
    tensor.fill_(float("nan"))


def fill_places(places: Tensor, random: torch.Generator) -> None:
    """Normal random values, in the first and the last place of their own; those between repeat the first's.

    Drawing random numbers for half a gigabyte takes seconds, and caches go by addresses.
    """
    places[0].normal_(generator=random)
    places[1:-1].copy_(places[:1])
    places[-1].normal_(generator=random)


def spread(num_places: int, check: int) -> int:
    """Place of a check: the first, the last."""
    return (num_places - 1) * check // max(NUM_CHECKS - 1, 1)
