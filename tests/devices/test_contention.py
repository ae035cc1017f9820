"""A neighbour on our core is seen in the scheduler's books: really put there."""

import os
import subprocess
import sys
import time

import pytest

from harness.devices.contention import WaitBooks, waited_between
from harness.specs.event import CpuWait


def waited_while_spinning(seconds: float) -> float:
    books, end = WaitBooks(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    closed = books.closed(repeat=0)
    assert closed.wall_s >= seconds
    wait = closed.wait
    if wait.queued_s is None or wait.others_s is None:
        pytest.skip("this kernel keeps no such books")
    return min(wait.queued_s, wait.others_s)


def test_a_process_on_our_core_makes_us_wait() -> None:
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    os.sched_setaffinity(0, {core})
    neighbour = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()
        assert waited_while_spinning(1.0) > 0.2, "it takes about half of the core"
    finally:
        neighbour.kill()
        neighbour.wait()
        os.sched_setaffinity(0, allowed)


def test_the_books_are_of_the_cpus_from_before_a_thread_was_pinned() -> None:
    """A pause closes them on a thread that is pinned to one core: a neighbour on another one still counts."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two CPUs")
    first, *others = sorted(allowed)
    books = WaitBooks()
    neighbour = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, {others[-1]}),
    )
    os.sched_setaffinity(0, {first})
    try:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()
        books.open()
        time.sleep(1.0)
        others_s = books.closed(repeat=0).wait.others_s
        assert others_s is None or others_s > 0.2
    finally:
        os.sched_setaffinity(0, allowed)
        neighbour.kill()
        neighbour.wait()


def test_a_shrinking_sum_is_no_negative_wait() -> None:
    before, after = (
        CpuWait(queued_s=2.0, others_s=1.0, stolen_s=1.0),
        CpuWait(queued_s=1.0, others_s=3.0, stolen_s=1.25),
    )
    wait = waited_between(before, after)
    assert (wait.queued_s, wait.others_s, wait.stolen_s) == (0.0, 2.0, 0.25)
    unknown = CpuWait(queued_s=None, others_s=None, stolen_s=None)
    assert waited_between(unknown, after) == unknown
