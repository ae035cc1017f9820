"""Environment variables of vLLM in this process: set before it is imported, put back when it is closed."""

from __future__ import annotations

import os

from harness.devices.cpu import physical_cores
from harness.engines.vllm_setup import NO_BINDING, our_variables
from harness.errors import ConfigError
from harness.specs.vllm import VllmEngine


class Variables:
    """The run's variables in this process. vLLM adds some of its own, which go with them."""

    def __init__(self, engine: VllmEngine) -> None:
        self._before = dict(os.environ)
        quiet = {
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout holds results alone
            "VLLM_LOGGING_LEVEL": "ERROR",  # what it settled on is in the record
        }
        for name, value in (our_variables(engine.world_size) | quiet).items():
            os.environ.setdefault(name, value)
        os.environ.update(engine.environment)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine steps when we say so

    def restore(self) -> None:
        for name in set(os.environ) - set(self._before):
            del os.environ[name]
        os.environ.update(self._before)


def bound_cores() -> list[int] | None:
    """Cores that this process's OpenMP threads shall stay on, one each; None where they are not to be bound.

    vLLM heeds its variable only for worker processes, so the harness does for the one that works here.
    """
    binding = os.environ["VLLM_CPU_OMP_THREADS_BIND"]
    if binding == NO_BINDING:
        return None
    if binding == "auto":
        return physical_cores()
    cores: list[int] = []
    try:
        for part in binding.split(","):
            first, _, last = part.partition("-")
            cores += range(int(first), int(last or first) + 1)
    except ValueError:
        raise ConfigError(
            f"VLLM_CPU_OMP_THREADS_BIND is {binding!r}", f"write cores such as 0,2-3, auto or {NO_BINDING}"
        ) from None
    return cores
