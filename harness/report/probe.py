"""`harness probe`: the survey of this machine's memory, by itself."""

from collections.abc import Callable

from harness.cpu_pool import CpuPool, physical_cores
from harness.devices.cpu import detect_cpu
from harness.errors import ConfigError, UnavailableError
from harness.exclusive import measuring
from harness.probe.memory import open_cpu_probe
from harness.specs.probe import ProbeReport
from harness.specs.run import ProbeConfig


def probe_this_machine(threads: int | None, tell: Callable[[str], None]) -> ProbeReport:
    """Survey with so many threads, by default one for each physical core."""
    cores = physical_cores()
    if threads is not None and threads > len(cores):
        raise ConfigError(f"--threads {threads}: this process may use {len(cores)} cores", "lower it")
    try:
        pool = CpuPool(cores[:threads])
    except UnavailableError as fault:
        tell(f"no thread pool ({fault.what}): the probe is a torch reduction")
        pool = None
    try:
        with measuring(tell):
            probe = open_cpu_probe(ProbeConfig(), pool, detect_cpu())
            try:
                return probe.survey(None)
            finally:
                probe.close()
    finally:
        if pool is not None:
            pool.close()
