"""The order of an A/B. Never all of A and then all of B: a machine that drifts would make the later one win or lose."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def turning_order(sides: Sequence[T], num_blocks: int) -> Iterator[tuple[int, T]]:
    """(block, side): every side once a block, in the order A B C, C B A, A B C, ...

    Over two blocks each side's mean place in time is the same, so a drift in a straight line cancels.
    """
    for block in range(num_blocks):
        for side in sides if block % 2 == 0 else reversed(sides):
            yield block, side
