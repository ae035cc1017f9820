"""Builds a gpu.cu for a card's architecture, or for the host, and loads it; cached as the CPU kernels are.

One source serves all (kernels/portable.h): nvcc compiles it for CUDA, hipcc for HIP, and the C++ compiler for the host,
where kernels are checked without a card.
"""

import ctypes
import re
from pathlib import Path

from harness.errors import UnavailableError
from harness.kernel_build import Library, build_library, find_command, find_compiler, load_library

HOST = "host"
"""The target whose lanes are fibres: right, and slow."""

_FLAGS = {
    "cuda": ("-std=c++17", "-O3", "-shared", "-Xcompiler", "-fPIC,-Wall,-Wextra"),
    "hip": ("-x", "hip", "-std=c++17", "-O3", "-shared", "-fPIC", "-Wall", "-Wextra"),
    HOST: ("-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra"),
}
# CUDA Programming Guide, Compute Capabilities, "Memory Information per Compute Capability": maximum amount of shared
# memory per thread block. AMD: the LDS of a compute unit, of which a workgroup may have all, in ROCm's "AMD GPU
# specifications"; LLVM's AMDGPU.td has the same 65536 for all of gfx9 but gfx950's 163840. Hygon publishes none: for
# gfx936 rocminfo (GROUP segment) and torch (shared_memory_per_block) say so on a card. No entry: nobody knows.
_SHARED_KIB = {
    "sm_75": 64, "sm_80": 163, "sm_86": 99, "sm_87": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_103": 227,
    "sm_110": 227, "sm_120": 99, "sm_121": 99,
    "gfx900": 64, "gfx906": 64, "gfx908": 64, "gfx90a": 64, "gfx942": 64, "gfx950": 160, "gfx936": 64,
}  # fmt: skip
MOST_THREADS = 1024
"""Of a block, on all of these cards: the same guide, "Maximum number of threads per block"; on AMD's it is a limit of
the ISA, which ROCR-Runtime tells as HSA_ISA_INFO_WORKGROUP_MAX_SIZE (its issue 55)."""


def load_gpu_kernel(source: Path, target: str) -> ctypes.CDLL:
    """The shared library of a gpu.cu for `sm_90`, `gfx906`, ... or `host`; features behind a colon are left away.

    Raises UnavailableError without the target's compiler, for a target of no known kind, and when the source does not
    compile, as a compiler older than the card makes it.
    """
    return load_library(build_gpu_kernel(source, target).path)


def build_gpu_kernel(source: Path, target: str) -> Library:
    """As load_gpu_kernel, and not loaded: a library needs its card's runtime only then."""
    return build_library(source, *compile_command(target))


def compile_command(target: str) -> tuple[list[str], tuple[str, ...]]:
    """The compiler that makes a library for this target, and its flags."""
    arch, platform = target.partition(":")[0], platform_of(target)
    if platform == "cuda":
        return find_nvcc(), (*_FLAGS[platform], f"-arch={arch}")
    if platform == "hip":
        return find_hipcc(), (*_FLAGS[platform], f"--offload-arch={arch}", f"-DGPU_WAVE={wave_widths(target)[0]}")
    return find_compiler(), _FLAGS[platform]


def platform_of(target: str) -> str:
    """cuda, hip or host."""
    for platform, pattern in (("cuda", r"sm_\d+[af]?"), ("hip", r"gfx[0-9a-f]{3,4}(:.*)?"), (HOST, HOST)):
        if re.fullmatch(pattern, target):
            return platform
    raise UnavailableError(
        f"no GPU kernels can be built for {target[:80]!r}", "name an architecture such as sm_90 or gfx906, or host"
    )


def wave_widths(target: str) -> tuple[int, ...]:
    """The wave widths that a library of this target has kernels for: 64 on gfx9 and older, 32 on RDNA and CUDA."""
    platform = platform_of(target)
    if platform == HOST:
        return (32, 64)
    is_rdna = re.match(r"gfx1\d{3}", target) is not None
    return (64,) if platform == "hip" and not is_rdna else (32,)


def most_shared_bytes(target: str) -> int | None:
    """What a block may have of shared memory (LDS) there; null where it is not known."""
    arch = target.partition(":")[0]
    kib = _SHARED_KIB.get(arch.rstrip("af") if arch.startswith("sm_") else arch)
    return None if kib is None else kib << 10


def find_nvcc() -> list[str]:
    """$NVCC (with its arguments), else nvcc on the PATH or where CUDA is usually installed."""
    mend = "install the CUDA toolkit, or set NVCC to its nvcc"
    return find_command("NVCC", ("nvcc", "/usr/local/cuda/bin/nvcc"), "nvcc is not on the PATH", mend)


def find_hipcc() -> list[str]:
    """$HIPCC (with its arguments), else hipcc on the PATH or where ROCm and Hygon's DTK are usually installed.

    HIP_PLATFORM=amd: hipcc hands the source to nvcc where it finds one.
    """
    mend = "install hipcc (apt install hipcc, ROCm, or the vendor's DTK), or set HIPCC"
    names = ("hipcc", "/opt/rocm/bin/hipcc", "/opt/dtk/bin/hipcc")
    return ["env", "HIP_PLATFORM=amd", *find_command("HIPCC", names, "hipcc is not on the PATH", mend)]
