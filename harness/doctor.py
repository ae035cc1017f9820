"""`harness doctor`: what this machine has of what the harness uses, and what its lack means. Never a failure."""

import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from importlib import metadata

from harness.devices.cpu import available_memory_bytes, detect_cpu
from harness.environment import read_environment
from harness.errors import ConfigError, UnavailableError
from harness.kernel_build import find_compiler
from harness.tunableop import FILENAME, differences, read_tunings, results_path
from harness.units import num_bytes


@dataclass(frozen=True)
class Finding:
    """One line: what was looked for, what was found, and what to do when it is missing."""

    name: str
    found: str
    ok: bool
    mend: str = ""


def examine() -> list[Finding]:
    """Everything a run depends on, quickest first."""
    device, environment = detect_cpu(), read_environment()
    memory = available_memory_bytes()
    cores = len(environment.affinity)
    return [
        Finding("cpu", f"{device.name}, {device.num_compute_units} physical cores of {cores} usable CPUs", True),
        Finding("instructions", " ".join(device.features) or "none that the kernels ask for", bool(device.features)),
        Finding("cache", num_bytes(device.last_level_cache_bytes), device.last_level_cache_bytes is not None),
        Finding("memory", f"{num_bytes(memory)} free", memory is not None),
        _huge_pages(environment.transparent_huge_pages),
        _compiler(),
        _package("torch", "pip install torch: the native engine needs it"),
        _package("tokenizers", "pip install tokenizers: prompts as text need it"),
        _gpu(),
        *_tunings(),
    ]


def _huge_pages(setting: str | None) -> Finding:
    """The kernel shows its choice in brackets: always [madvise] never."""
    offered = setting is not None and "[never]" not in setting
    return Finding("huge pages", setting or "-", offered, "weights and probe read slower on small pages")


def _compiler() -> Finding:
    try:
        return Finding("compiler", " ".join(find_compiler()), True)
    except UnavailableError as fault:
        return Finding(
            "compiler", "none", False, f"{fault.mend}: without it the probe is a torch reduction, a weaker roof"
        )


def _package(name: str, mend: str) -> Finding:
    if importlib.util.find_spec(name) is None:
        return Finding(name, "not installed", False, mend)
    try:
        return Finding(name, metadata.version(name), True)
    except metadata.PackageNotFoundError:  # a folder on the path, such as a vendor's build, need not be a distribution
        return Finding(name, "installed, version not known", True)


def _gpu() -> Finding:
    """By the drivers' own tools: asking torch would take seconds."""
    tools = [tool for tool in ("nvidia-smi", "hy-smi", "rocm-smi", "amd-smi") if shutil.which(tool)]
    return Finding("gpu", f"{', '.join(tools)} is here" if tools else "no driver tool; runs on the CPU", True)


def _tunings() -> list[Finding]:
    """Where torch is pointed at a file of TunableOp's: whether it would ignore it, which it does without an error. Of
    the file's versions torch's own is known here; the libraries' and the card's are seen when it is used."""
    if not os.environ.get(FILENAME):
        return []
    path = results_path(os.environ, ordinal=0)
    if not path.exists():
        return [Finding("TunableOp", f"{path} is not there yet", True)]
    try:
        tunings = read_tunings(path)
    except ConfigError as fault:
        return [Finding("TunableOp", fault.what, False, fault.mend)]
    known = {name: value for name, value in tunings.validators.items() if name == "PT_VERSION"}
    faults = ["CRLF line ends"] * tunings.has_crlf + differences(known, _torch_validator() or known)
    if not faults:
        return [Finding("TunableOp", f"{path}: {len(tunings.results)} products", True)]
    return [Finding("TunableOp", f"{path}: {'; '.join(faults)}", False, "torch ignores it: mend it, or tune anew")]


def _torch_validator() -> dict[str, str]:
    """The version as TunableOp writes it: without what builds append."""
    try:
        number = re.match(r"\d+(\.\d+)*", metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return {}
    return {"PT_VERSION": number.group()} if number else {}


def one_line(findings: list[Finding]) -> str:
    """The machine in a sentence, lacks named."""
    found = {finding.name: finding.found for finding in findings}
    lacks = [finding.name for finding in findings if not finding.ok]
    missing = f"lacking: {', '.join(lacks)}" if lacks else "nothing missing"
    return f"{found['cpu']}; {found['memory']}; {found['compiler']}; torch {found['torch']}; {missing}"
