"""What backends of other people's libraries share: is the package here, and one line where it can't be loaded.

Listing backends imports none of them: such an import takes seconds, and a build for another torch fails in it.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from harness.backends.base import Support
from harness.errors import UnavailableError


def installed(package: str, install: str) -> Support:
    """Whether there is such a package. A folder without an __init__ is none: flash-attn-4 leaves one by flash-attn's
    name."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return Support.no(f"{package} is not installed", install)
    return Support.yes()


def load_library(module: str) -> ModuleType:
    """Imports it when a backend is made; UnavailableError for one that does not fit this torch or driver."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a shared library that is not there
        reason = str(error).partition("\n")[0]
        raise UnavailableError(
            f"{module} is installed and can't be loaded: {reason}",
            "install the build for this torch and driver, or take another backend",
        ) from error
