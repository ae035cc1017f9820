"""The CPU as /proc, /sys and cgroups tell it, on made-up machines."""

import os
from pathlib import Path

import pytest

from harness.devices import cpu
from harness.devices.cpu import available_memory_bytes, detect_cpu, last_level_cache_bytes, physical_cores

X86 = """\
processor\t: 0
model name\t: Example 9000 CPU
flags\t\t: fpu avx2 avx512f avx512_bf16

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""
MEMINFO = "MemTotal:       2000 kB\nMemFree:         100 kB\nMemAvailable:   1000 kB\n"


class Machine:
    """Folders that stand in for /proc, /sys/devices/system/cpu and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys, self.cgroup = root / "proc", root / "sys", root / "cgroup"

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def core(self, number: int, siblings: str) -> None:
        self.write(self.sys / f"cpu{number}/topology/thread_siblings_list", siblings)

    def cache(self, number: int, index: int, level: int, size: str, shared: str, kind: str = "Unified") -> None:
        folder = self.sys / f"cpu{number}/cache/index{index}"
        for name, text in {
            "level": str(level),
            "size": size,
            "shared_cpu_list": shared,
            "type": kind,
        }.items():
            self.write(folder / name, text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made_up = Machine(tmp_path)
    monkeypatch.setattr(cpu, "_PROC", made_up.proc)
    monkeypatch.setattr(cpu, "_SYS_CPU", made_up.sys)
    monkeypatch.setattr(cpu, "_CGROUP", made_up.cgroup)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    return made_up


def test_a_machine_that_tells_everything(machine: Machine) -> None:
    machine.write(machine.proc / "cpuinfo", X86)
    machine.write(machine.proc / "meminfo", MEMINFO)
    for number in range(4):
        machine.core(number, "0,2" if number % 2 == 0 else "1,3")
        machine.cache(number, 3, 3, "2M", "0-3")
    info = detect_cpu()
    assert info.kind == "cpu" and info.name == "Example 9000 CPU"
    assert info.num_compute_units == 2
    assert info.memory_bytes == 2000 << 10
    assert info.last_level_cache_bytes == 2 << 20
    assert info.features == ("avx2", "avx512f", "avx512_bf16")


def test_a_machine_that_tells_nothing(machine: Machine) -> None:
    info = detect_cpu()
    assert info.name
    assert info.num_compute_units == 4, "every CPU that we may run on"
    assert (info.memory_bytes, info.last_level_cache_bytes, info.features) == (None, None, ())
    assert available_memory_bytes() is None


def test_arm_features_have_their_names(machine: Machine) -> None:
    machine.write(machine.proc / "cpuinfo", "processor : 0\nFeatures : fp asimd sve bf16\n")
    assert detect_cpu().features == ("neon", "sve", "arm_bf16")


def test_this_machine() -> None:
    info = detect_cpu()
    assert info.num_compute_units == len(physical_cores()) <= len(os.sched_getaffinity(0))
    available = available_memory_bytes()
    assert info.memory_bytes is None or available is None or 0 < available <= info.memory_bytes


def test_physical_cores_keep_to_the_affinity(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        machine.core(number, "0-1" if number < 2 else "2-3")
    assert physical_cores() == [0, 2]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 1})
    assert physical_cores() == [1, 3]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 3})
    assert physical_cores() == [2]


def test_the_outermost_level_is_the_last(machine: Machine) -> None:
    machine.cache(0, 0, 1, "48K", "0", "Data")
    machine.cache(0, 1, 1, "64K", "0", "Instruction")
    machine.cache(0, 2, 2, "512K", "0")
    assert last_level_cache_bytes() == 512 << 10
    machine.cache(0, 3, 3, "256K", "0-3")
    assert last_level_cache_bytes() == 256 << 10, "the last level, though it is smaller"


def test_several_last_level_caches_add_up(machine: Machine) -> None:
    for number in range(4):
        machine.cache(number, 3, 3, "32768K", "0-1" if number < 2 else "2-3")
        machine.cache(number, 2, 2, "1M", str(number))
    assert last_level_cache_bytes() == 64 << 20


def test_memory_without_a_cgroup(machine: Machine) -> None:
    machine.write(machine.proc / "meminfo", MEMINFO)
    assert available_memory_bytes() == 1000 << 10


V1, V2 = "4:memory:{path}\n1:cpu:/x\n0::/y", "0::{path}"


@pytest.mark.parametrize(
    ("groups", "mount", "limit", "used", "inactive"),
    [
        (V2, ".", "memory.max", "memory.current", "inactive_file"),
        (V1, "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
    ids=["v2", "v1"],
)
@pytest.mark.parametrize("at", ["/outer/inner", "/outer", "/"])
def test_a_cgroup_limits(
    machine: Machine, groups: str, mount: str, limit: str, used: str, inactive: str, at: str
) -> None:
    machine.write(machine.proc / "meminfo", MEMINFO)
    machine.write(machine.proc / "self/cgroup", groups.format(path="/outer/inner"))
    folder = machine.cgroup / mount / at.lstrip("/")
    machine.write(folder / limit, "500000")
    machine.write(folder / used, "300000")
    assert available_memory_bytes() == 200_000
    machine.write(folder / "memory.stat", f"anon 1\n{inactive} 50000\n")
    assert available_memory_bytes() == 250_000
    machine.write(folder / used, "900000")
    machine.write(folder / "memory.stat", "")
    assert available_memory_bytes() == 0


@pytest.mark.parametrize("no_limit", ["max", "9223372036854771712"])
def test_a_cgroup_without_a_limit(machine: Machine, no_limit: str) -> None:
    machine.write(machine.proc / "meminfo", MEMINFO)
    machine.write(machine.proc / "self/cgroup", V2.format(path="/"))
    machine.write(machine.cgroup / "memory.max", no_limit)
    machine.write(machine.cgroup / "memory.current", "300000")
    assert available_memory_bytes() == 1000 << 10
