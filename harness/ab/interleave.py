"""The order of an A/B. Never all of A and then all of B: a machine that drifts would make the later one win or lose."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def turn(sides: Sequence[T], block: int) -> list[T]:
    """Every side once: A B C in even blocks, C B A in odd ones.

    Over two blocks each side's mean place in time is the same, so a drift in a straight line cancels.
    """
    return list(sides if block % 2 == 0 else reversed(sides))


def turning_order(sides: Sequence[T], num_blocks: int) -> Iterator[tuple[int, T]]:
    """(block, side) for so many blocks: A B C, C B A, A B C, ..."""
    for block in range(num_blocks):
        for side in turn(sides, block):
            yield block, side
