"""What a comparison needs of an operation: places to rotate through, fresh inputs, and what is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from harness.backends.base import Executor, Launch
from harness.specs.problem import Parameters

CHECKS = ((0, 0), (0, 1), (1, 1))
"""(which fresh input, at the first place or the last) of each check: each differs from the one before in the place or
in the input alone, so a result that was kept for either is wrong."""
NUM_CHECKS, NUM_INPUTS = len(CHECKS), 2
SPOT_ROUNDINGS = 2
"""How much more a spot may err than a whole result: errors are held against mean sizes, and a part's may be less."""
ODD = -0x61C8864680B583EB
"""2^64 over the golden ratio, as a signed word: its odd multiples differ in all their bits."""
WORDS_AT_ONCE = 1 << 17
"""A mebibyte, which stays in a core's cache between its product and its sum."""


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
    """Places that are filled, no two alike, and what is right for them; the same for all sides."""

    flop: int | None
    """Of one call, where it is bound by arithmetic."""

    def pose(self, check: int) -> int:
        """Puts the inputs of a check in place and poisons the output; returns its place."""

    def fault(self, check: int) -> str:
        """After the launch of that place: what is wrong with its result; empty where nothing is."""

    def renew(self) -> None:
        """Other random inputs, before a block of samples: a result that was kept for the old ones would be wrong."""

    def mark(self, place: int, num_calls: int) -> None:
        """Before a sample that ends at a place and calls so often there, with the inputs as they are: `spot_fault` is
        to know what is right then."""

    def spot_fault(self, place: int) -> str:
        """After a sample that ended at a place: what is wrong with a part of the result that it left, which is too
        small a part to make a sample dear. Empty where nothing is."""

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
    """Of the 64-bit words, each times an odd number that its position gives, so that words that were only moved show
    too; and of the bytes of what is left."""
    content = tensor.contiguous().flatten().view(torch.uint8)
    words = content[: content.numel() // 8 * 8]
    rest = int.from_bytes(bytes(content[words.numel() :].tolist()), "little")
    factors = _odd_factors(WORDS_AT_ONCE, content.device)
    sums = [(part * factors[: len(part)]).sum() for part in torch.split(words.view(torch.int64), WORDS_AT_ONCE)]
    total = int((torch.stack(sums) * _odd_factors(len(sums), content.device)).sum())
    return total << 64 | rest


def _odd_factors(count: int, device: torch.device) -> Tensor:
    return (torch.arange(1, count + 1, device=device) * ODD) | 1  # products and sums wrap


def poison(tensor: Tensor) -> None:
    """What is not written stays NaN, and shows."""
    tensor.fill_(float("nan"))


def fill_places(places: Tensor, random: torch.Generator) -> None:
    """Normal random values, in the first and the last place of their own; each between has the first's moved on by one
    value more, so that what is right at one place is wrong at the next.

    Drawing random numbers for half a gigabyte takes seconds, and caches go by addresses.
    """
    places[0].normal_(generator=random)
    first = places[0].flatten()
    for number, place in enumerate(places[1:-1], 1):
        by = number % len(first)
        torch.cat((first[by:], first[:by]), out=place.view(-1))
    places[-1].normal_(generator=random)


def spread(num_places: int, check: int) -> int:
    """Place of a check."""
    return (num_places - 1) * CHECKS[check][1]
