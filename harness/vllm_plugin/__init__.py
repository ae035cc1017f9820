"""Our kernels inside vLLM, found by its entry point `vllm.general_plugins` in each of its processes.

Importing this costs nothing, and `register` does nothing until HARNESS_SELECTION names a table.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.vllm_plugin.session import Session

_OP = "harness.vllm_plugin.op"


def register() -> None:
    """What vLLM calls when it starts, in every process and perhaps twice. ConfigError and UnavailableError keep it from
    starting: a run with the selection that was asked for, or none."""
    if os.environ.get("HARNESS_SELECTION"):
        from harness.vllm_plugin.install import install

        install()


def open_session() -> Session | None:
    """Of the model in this process; None where there is none, or no layer of it that a table could list."""
    return sys.modules[_OP].current() if _OP in sys.modules else None


def close_session() -> None:
    """Lets go of the model; the next one's layers open a session of their own."""
    if _OP in sys.modules:
        sys.modules[_OP].replace(None)
