"""Every launch runs on every thread exactly once, on its core, and nothing spins when it should not."""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.cpu_pool import CpuPool, physical_cores
from harness.errors import ConfigError
from harness.kernel_build import find_compiler, kernel_source, load_kernel
from harness.resources import kernels_dir

WHERE = """
#include <sched.h>
#include "cpu_pool.h"
extern "C" void where(cpu_pool* pool, int* cores, int* teams) {
  struct Arguments { int* cores; int* teams; } arguments{cores, teams};
  cpu_pool_run(pool, [](void* a, int thread, int num_threads) {
    static_cast<Arguments*>(a)->cores[thread] = sched_getcpu();
    static_cast<Arguments*>(a)->teams[thread] += num_threads;
  }, &arguments);
}
"""


def all_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def thread_ids() -> set[str]:
    return {thread.name for thread in Path("/proc/self/task").iterdir()}


def state(thread_id: str) -> str:
    """R, S, ... of one of our threads."""
    return Path(f"/proc/self/task/{thread_id}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = tmp_path_factory.mktemp("where") / "cpu.cpp"
    source.write_text(WHERE)
    return load_kernel(source)


def edited_pool(folder: Path, edits: dict[str, str]) -> Path:
    """A copy of the pool's source with some constants changed."""
    text = kernel_source("cpu_pool").read_text()
    for old, new in edits.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    source = folder / "cpu_pool" / "cpu.cpp"
    source.parent.mkdir()
    source.write_text(text)
    return source


def run_where(where: ctypes.CDLL, handle: int | None, num_threads: int) -> tuple[list[int], list[int]]:
    cores, teams = (ctypes.c_int * num_threads)(), (ctypes.c_int * num_threads)()
    where.where(ctypes.c_void_p(handle), cores, teams)
    return list(cores), list(teams)


@pytest.mark.compiler
def test_threads_run_on_their_cores(where: ctypes.CDLL) -> None:
    cores = list(reversed(all_cores()))
    with CpuPool(cores) as pool, pool.pinned():
        assert pool.num_threads == len(cores)
        for _ in range(100):
            assert run_where(where, pool.handle, len(cores)) == (cores, [len(cores)] * len(cores))


@pytest.mark.compiler
def test_a_launch_after_parking(where: ctypes.CDLL) -> None:
    with CpuPool(all_cores()) as pool:
        for _ in range(200):
            pool.park()
            pool.park()
            assert run_where(where, pool.handle, pool.num_threads)[1] == [pool.num_threads] * pool.num_threads


@pytest.mark.compiler
def test_no_pool_and_one_thread_are_the_caller(where: ctypes.CDLL) -> None:
    assert run_where(where, None, 1)[1] == [1]
    before = thread_ids()
    with CpuPool(all_cores()[:1]) as pool:
        assert run_where(where, pool.handle, 1)[1] == [1]
        pool.park()
        assert thread_ids() == before


def are_asleep(threads: set[str]) -> bool:
    return wait_until(lambda: all(state(thread) == "S" for thread in threads))


@pytest.mark.compiler
def test_idle_workers_sleep_and_closing_ends_them(where: ctypes.CDLL) -> None:
    before = thread_ids()
    with CpuPool(all_cores()) as pool:
        workers = thread_ids() - before
        assert len(workers) == pool.num_threads - 1
        run_where(where, pool.handle, pool.num_threads)
        assert are_asleep(workers)
    assert wait_until(lambda: not thread_ids() & workers)


@pytest.mark.compiler
@pytest.mark.parametrize("how", ["park", "pinned"])
def test_tireless_workers_sleep_on_demand(
    how: str, where: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = edited_pool(tmp_path, {"milliseconds kSpin{2}": "hours kSpin{1}"})
    monkeypatch.setattr("harness.cpu_pool.kernel_source", lambda op: source)
    before = thread_ids()
    with CpuPool(all_cores()) as pool:
        workers = thread_ids() - before
        with pool.pinned() if how == "pinned" else nullcontext():
            run_where(where, pool.handle, pool.num_threads)
        if how == "park":
            pool.park()
        assert are_asleep(workers)


@pytest.mark.compiler
def test_pinned_is_for_the_calling_thread_and_undone(cpu_pool: CpuPool) -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    other = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
    with pytest.raises(RuntimeError, match="planted"), cpu_pool.pinned():
        assert os.sched_getaffinity(0) == {cpu_pool.cores[0]}
        assert os.sched_getaffinity(os.getpid()) in ({cpu_pool.cores[0]}, before)
        raise RuntimeError("planted")
    assert os.sched_getaffinity(0) == before
    other.start()
    other.join()
    assert seen == [before]


@pytest.mark.compiler
def test_closing() -> None:
    pool = CpuPool()
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        _ = pool.handle


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_leaves_the_pool_alone(where: ctypes.CDLL) -> None:
    with CpuPool(all_cores()) as pool:
        pool.park()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends a child that waits for lost threads
            signal.alarm(20)
            pool.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert run_where(where, pool.handle, pool.num_threads)[1] == [pool.num_threads] * pool.num_threads


@pytest.mark.parametrize(
    ("cores", "what"), [([], "at least one"), ([0, 0], "twice"), ([1 << 20], "may not use core 1048576")]
)
def test_refused_cores(cores: list[int], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        CpuPool(cores)


def test_default_cores_are_ours() -> None:
    assert set(physical_cores()) <= os.sched_getaffinity(0)


HASTY = {"milliseconds kSpin{2}": "microseconds kSpin{1}", "kPausesPerLook = 256": "kPausesPerLook = 8"}
"""Workers that fall asleep at once, so that nearly every launch meets one on its way there."""


def build_stress(folder: Path, flags: tuple[str, ...], edits: dict[str, str]) -> Path | None:
    """The stress program over an edited copy of the pool; None where the compiler has no such sanitizer."""
    edited_pool(folder, edits)
    source, program = Path(__file__).parent / "cpu_pool_stress.cpp", folder / "stress"
    command = [*find_compiler(), "-std=c++17", "-O2", "-pthread", *flags, f"-I{folder}", f"-I{kernels_dir()}"]
    command += [str(source), "-o", str(program)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert flags or result.returncode == 0, result.stderr
    return program if result.returncode == 0 else None


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("flags", "edits"),
    [((), {}), ((), HASTY), (("-fsanitize=thread", "-g"), {})],
    ids=["plain", "hasty", "tsan"],
)
def test_no_wake_up_is_lost(flags: tuple[str, ...], edits: dict[str, str], tmp_path: Path) -> None:
    program = build_stress(tmp_path, flags, edits)
    if program is None:
        pytest.skip("this compiler has no thread sanitizer")
    cores = [str(core) for core in all_cores()[:4]]
    for num_launches, team in ((100_000, cores), (2_000, cores[:1] * 3)):  # the second team shares a core
        result = subprocess.run(
            [str(program), str(num_launches), *team], capture_output=True, text=True, timeout=200, check=False
        )
        assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr
