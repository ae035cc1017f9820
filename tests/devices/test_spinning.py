"""Threads that spin are waited for: real ones, of our own making and of torch's."""

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.devices.spinning import wait_for_spinning_threads
from harness.errors import MeasurementError
from harness.kernel_build import load_kernel

SPIN = """
#include <chrono>
extern "C" void spin(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {}
}
"""


@contextmanager
def spinning(folder: Path, seconds: float) -> Iterator[threading.Thread]:
    """A thread that holds a core for so long, without Python's lock."""
    source = folder / "spin.cpp"
    source.write_text(SPIN)
    thread = threading.Thread(target=load_kernel(source).spin, args=(ctypes.c_double(seconds),), name="odd) name (R")
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


@pytest.mark.compiler
def test_a_thread_that_spins_is_waited_for(tmp_path: Path) -> None:
    with spinning(tmp_path, 0.3) as thread:
        wait_for_spinning_threads()
        thread.join(0.1)  # the letter of a thread that is about to end is no longer R
        assert not thread.is_alive()


@pytest.mark.compiler
def test_one_that_never_sleeps_is_named(tmp_path: Path) -> None:
    with spinning(tmp_path, 0.5), pytest.raises(MeasurementError, match="keep spinning") as caught:
        wait_for_spinning_threads(limit_s=0.05)
    assert "KMP_BLOCKTIME" in caught.value.mend


def test_threads_that_sleep_are_no_reason_to_wait() -> None:
    asleep = threading.Event()
    thread = threading.Thread(target=asleep.wait)
    thread.start()
    time.sleep(0.01)
    wait_for_spinning_threads(limit_s=0.05)
    asleep.set()
    thread.join()


@pytest.mark.torch
def test_torchs_threads_take_no_time_afterwards() -> None:
    """The books of every other thread stand still: none of them runs beside what is timed next."""
    torch = pytest.importorskip("torch")
    x = torch.randn(512, 512)
    for _ in range(5):
        x @ x
    wait_for_spinning_threads()
    before = others_s()
    time.sleep(0.05)
    assert others_s() - before < 0.002


def others_s() -> float:
    """CPU seconds of all threads but this one."""
    ours = threading.get_native_id()
    tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != str(ours)]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
