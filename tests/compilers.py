"""The one place where a test skips for want of a compiler, or fails: HARNESS_REQUIRE_COMPILERS=1 says that all are
here, as where a change is proved, since a proof that was skipped looks like one that went well."""

import os

import pytest

from harness.errors import UnavailableError
from harness.gpu_build import compile_command


def command_for(target: str) -> tuple[list[str], tuple[str, ...]]:
    """The compiler of a GPU kernel for this target, and its flags; `host`: the C++ compiler."""
    try:
        return compile_command(target)
    except UnavailableError as error:
        if os.environ.get("HARNESS_REQUIRE_COMPILERS") == "1":
            pytest.fail(f"{error.what}, and HARNESS_REQUIRE_COMPILERS=1")
        pytest.skip(error.what)
