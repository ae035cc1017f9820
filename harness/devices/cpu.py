"""The CPU and its memory, as this process may use them. What can't be read is None."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from harness.specs.device import DeviceInfo

_SYS_CPU = Path("/sys/devices/system/cpu")
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")

# The instruction sets that kernels ask for, by their names in /proc/cpuinfo (x86: flags, ARM: Features).
_FEATURES = {
    "avx2": "avx2",
    "avx512f": "avx512f",
    "avx512_bf16": "avx512_bf16",
    "amx_bf16": "amx_bf16",
    "asimd": "neon",
    "sve": "sve",
    "bf16": "arm_bf16",
}


def detect_cpu() -> DeviceInfo:
    """Model name, physical cores, memory, last-level cache and instruction sets of this machine."""
    flags = cpu_flags()
    return DeviceInfo(
        kind="cpu",
        name=_cpuinfo("model name") or platform.processor() or platform.machine() or "CPU",
        arch=platform.machine() or None,
        num_compute_units=len(physical_cores()),
        memory_bytes=_meminfo_bytes("MemTotal"),
        last_level_cache_bytes=last_level_cache_bytes(),
        features=tuple(name for flag, name in _FEATURES.items() if flag in flags),
    )


def physical_cores() -> list[int]:
    """One logical CPU for each physical core that this process may run on, in ascending order.

    Two hyperthreads of one core share its load ports and its outstanding misses: the second reads memory no
    faster, and in a step that ends with the slowest thread it only adds one. Without topology: every CPU we
    may run on.
    """
    first_of_core: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = _text(_SYS_CPU / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        first_of_core.setdefault(siblings, cpu)
    return list(first_of_core.values())


def last_level_cache_bytes() -> int | None:
    """The outermost cache level's size, summed over its instances that our CPUs reach.

    The sum, because each thread's share of a buffer stays in its own instance: twelve caches of 32 MB hold a
    buffer of 128 MB that twelve threads read, though it is four times as large as any of them.
    """
    instances: dict[tuple[int, str], int] = {}
    for cpu in os.sched_getaffinity(0):
        for index in (_SYS_CPU / f"cpu{cpu}/cache").glob("index*"):
            level, size = _text(index / "level"), _text(index / "size")
            if level and size and _text(index / "type") != "Instruction":
                sharers = _text(index / "shared_cpu_list") or str(cpu)
                instances[int(level), sharers] = _size_bytes(size)
    outermost = max((level for level, _ in instances), default=None)
    return sum(size for (level, _), size in instances.items() if level == outermost) or None


def available_memory_bytes() -> int | None:
    """Memory that can be taken without swapping: the system's, or less where a cgroup's limit leaves less."""
    candidates = [_meminfo_bytes("MemAvailable"), *_cgroup_left_bytes()]
    return min((known for known in candidates if known is not None), default=None)


def cpu_flags() -> tuple[str, ...]:
    """The instruction sets in /proc/cpuinfo's words, sorted; empty where it has none."""
    return tuple(sorted((_cpuinfo("flags") or _cpuinfo("Features") or "").split()))


def _text(path: Path) -> str | None:
    """A small file of the kernel's, stripped; None where it is missing or not ours to read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _size_bytes(text: str) -> int:
    """The kernel's cache sizes: `48K`, `300M`, or plain bytes."""
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1], 0)
    return int(text.rstrip("KMG")) << shift


def _cpuinfo(key: str) -> str | None:
    """The first CPU's value of a key in /proc/cpuinfo."""
    return _field(_text(_PROC / "cpuinfo"), key)


def _meminfo_bytes(key: str) -> int | None:
    value = _field(_text(_PROC / "meminfo"), key)  # "24684092 kB"
    return int(value.split()[0]) << 10 if value else None


def _field(text: str | None, key: str) -> str | None:
    """The value of the first line `key : value`."""
    for line in (text or "").splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == key:
            return value.strip()
    return None


def _cgroup_left_bytes() -> Iterator[int]:
    """What is left under each memory limit above this process; nothing where there is no limit."""
    for folder in _memory_cgroups():
        limit = _first_number(folder, "memory.max", "memory.limit_in_bytes")
        used = _first_number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            # A cgroup is charged for the page cache of its reads, which goes when memory is wanted.
            yield max(limit - used + _inactive_file_bytes(folder), 0)


def _inactive_file_bytes(folder: Path) -> int:
    """Page cache that is reclaimed first; version 1 gives its own figure and the total of its subtree."""
    stat = (line.split() for line in (_text(folder / "memory.stat") or "").splitlines())
    return max((int(line[1]) for line in stat if line[0] in ("inactive_file", "total_inactive_file")), default=0)


def _memory_cgroups() -> Iterator[Path]:
    """Our memory cgroup's folder and those above it, version 2 or 1.

    Inside a container the path in /proc/self/cgroup is the host's and may not exist under the container's own
    mount; the mount's root is then our cgroup, and walking up ends there.
    """
    for line in (_text(_PROC / "self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _CGROUP / "memory" if controllers else _CGROUP
        folder = root / path.lstrip("/")
        yield from (folder, *(above for above in folder.parents if above.is_relative_to(root)))


def _first_number(folder: Path, *names: str) -> int | None:
    """The number in the first of these files that holds one; cgroups write `max` for no limit."""
    texts = (_text(folder / name) for name in names)
    return next((int(text) for text in texts if text and text.isdigit()), None)
