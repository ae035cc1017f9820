"""Timed passes over a buffer, each proved by its checksum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from harness.errors import MeasurementError
from harness.probe.reader import Buffer
from harness.specs.probe import SweepPoint

MIN_ROUNDS = 3
"""One pass may meet a neighbour's burst; of three rarely all do."""

Candidate = tuple[str, int]
"""A reader's variant and its number of threads."""


def describe(candidate: Candidate) -> str:
    """As records name a reader."""
    variant, num_threads = candidate
    return f"{variant} threads={num_threads}"


def pass_s(buffer: Buffer, candidate: Candidate) -> float:
    """Time of one reading of the whole buffer. MeasurementError where its checksum is not the buffer's."""
    begin_s = time.perf_counter()
    found = buffer.read(*candidate)
    end_s = time.perf_counter()
    if found != buffer.expected_sum:
        raise MeasurementError(
            f"the reader {describe(candidate)} found checksum {found:#x} instead of {buffer.expected_sum:#x}",
            "the reader skipped bytes or this machine's memory is faulty: run a memory test, then report it",
        )
    return end_s - begin_s


def rounds_s(buffer: Buffer, candidates: Sequence[Candidate], time_s: float) -> dict[Candidate, list[float]]:
    """Times of each candidate's passes, in rounds over all of them: at least MIN_ROUNDS, and until `time_s` is over.

    Interleaved, so that a neighbour's burst hits every candidate and not just one.
    """
    passes_s: dict[Candidate, list[float]] = {candidate: [] for candidate in candidates}
    for _ in _until_over(time_s, MIN_ROUNDS):
        for candidate in candidates:
            passes_s[candidate].append(pass_s(buffer, candidate))
    return passes_s


def speed(buffer: Buffer, candidate: Candidate, time_s: float) -> float:
    """Bytes per second of one reader: the median of its passes."""
    return buffer.num_bytes / median(rounds_s(buffer, [candidate], time_s)[candidate])


def sweep_points(buffer: Buffer, passes_s: Mapping[Candidate, Sequence[float]]) -> tuple[SweepPoint, ...]:
    """The median speed of each candidate."""
    return tuple(
        SweepPoint(variant=variant, num_threads=threads, read_bytes_per_s=buffer.num_bytes / median(times_s))
        for (variant, threads), times_s in passes_s.items()
    )


def fastest(passes_s: Mapping[Candidate, Sequence[float]]) -> Candidate:
    """The candidate with the fastest single pass: what it can do, a neighbour's burst can only hide.

    Chosen only; its speed is measured again, since the fastest of many noisy figures over-estimates.
    """
    return min(passes_s, key=lambda candidate: min(passes_s[candidate]))


def move_bytes_per_s(buffer: Buffer, move: Callable[[], None], proof: Candidate, time_s: float) -> float:
    """Median speed of a copy or write that touches buffer.num_bytes; `proof` reads back what it left."""
    moves_s = []
    for _ in _until_over(time_s):
        begin_s = time.perf_counter()
        move()
        moves_s.append(time.perf_counter() - begin_s)
    pass_s(buffer, proof)
    return buffer.num_bytes / median(moves_s)


def _until_over(time_s: float, at_least: int = 1) -> Iterator[None]:
    """Yields so many times at least, and until `time_s` has passed."""
    end_s = time.perf_counter() + time_s
    for _ in range(at_least):
        yield
    while time.perf_counter() < end_s:
        yield
